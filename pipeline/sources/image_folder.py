"""Images by class, `SPLIT/CLASS/image` or `CLASS/image`, in a folder or in a tar or zip archive."""

from typing import ClassVar, Literal

from pipeline.prepare.inputs.image_files import ImageFileSettings
from pipeline.prepare.reading import archives
from pipeline.prepare.reading.class_folders import IMAGE_SUFFIXES, ClassFolders, find_classes
from pipeline.prepare.reading.file_tree import Tree


class Settings(ImageFileSettings):
    """Reads images `SPLIT/CLASS/image` or `CLASS/image`. `root` is a folder or a `.tar`, `.tar.gz`, `.tar.bz2`, `.tar.xz` or `.zip` file.

    SPLIT is `train`, `valid` (or `val`, `validation`, `dev`) or `test`, or `training` and `testing`. Without SPLIT folders, all images belong
    to train. A missing validation or test split is split off from train at random. `source.valid` and `source.test` are the shares to split
    off. A class folder may have subfolders. All these folders may be inside other folders. In class folders, files with another suffix than
    those of images are ignored and named, unless no file has such a suffix: then every file is read as an image. A test folder without class
    folders is not used. Any other image outside of the class folders is an error, and any other file is ignored. Hidden files, and files that
    desktop software creates (such as `Thumbs.db`), are ignored everywhere. Images are rotated by their EXIF orientation, and transparency is
    replaced by white.
    """

    name: Literal["image_folder"]

    RECOMMENDED: ClassVar = {"root": "data/raw/images"}
    ADDED: ClassVar = {"duplicates": "keep"}

    def files(self) -> tuple[Tree, ClassFolders]:
        tree = archives.open_tree(self.root)
        return tree, find_classes(tree.listing(), str(self.root), IMAGE_SUFFIXES)

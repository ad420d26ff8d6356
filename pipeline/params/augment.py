"""The section `augment`: what happens to a training image before the network sees it."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from pipeline.params.section import Section
from pipeline.refusal import Refusal

if TYPE_CHECKING:
    from pipeline.spec import Spec


class AugmentSettings(Section):
    crop: Annotated[int, Field(ge=0, le=1024)]
    """Pixels of zero padding on every side, out of which a window of the image's size is cut at random; 0 for none."""
    flip: Literal["none", "random", "alternating"]
    """Mirror left and right: `random`, every second sample on average; `alternating`, each sample in every second epoch."""
    cutout: Annotated[int, Field(ge=0, le=65_535)]
    """Side in pixels of a square set to the mean colour at a random place; 0 for none."""

    def refuse_blank_windows(self, spec: "Spec") -> None:
        """Raises Refusal where a window may miss the image; the border would then be most of what is kept in memory, too."""
        side = min(spec.height, spec.width)
        if self.crop >= side:
            raise Refusal(
                f"augment.crop: {self.crop} pixels around images of {spec.height}x{spec.width}, whose windows may then miss the image: "
                f"write at most {side - 1}"
            )

"""Reads the two settings of DVC that are examined, without importing DVC, whose import takes most of a second."""

import os
from configparser import ConfigParser, Error
from pathlib import Path


def read(top: Path) -> ConfigParser:
    """Return DVC's settings from the files of the system, the user, the checkout, and the checkout's local file; later files override earlier.

    A file with an error is skipped, because DVC reports it.
    """
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    settings = ConfigParser(interpolation=None, strict=False)
    for path in (Path("/etc/xdg/dvc/config"), home / "dvc/config", top / ".dvc/config", top / ".dvc/config.local"):
        try:
            settings.read(path, encoding="utf-8")
        except (Error, OSError, UnicodeDecodeError):
            continue
    return settings


def cache(top: Path) -> Path:
    """Return the folder of DVC's cache. A relative path in the settings starts at the folder of the settings, `.dvc`."""
    return top / ".dvc" / read(top).get("cache", "dir", fallback="cache")


def remote(top: Path) -> tuple[str, dict[str, str]] | None:
    """Return the name and the settings of the default remote, or None if there is none. Its url may contain a password."""
    settings = read(top)
    name = settings.get("core", "remote", fallback="").strip("\"'")
    section = f"'remote \"{name}\"'"
    return (name, dict(settings[section])) if name and settings.has_section(section) else None

"""The files and sockets that this process has open, as Linux tells it; elsewhere none are seen."""

from pathlib import Path

_DESCRIPTOR_FOLDER = Path("/proc/self/fd")


def open_descriptors() -> dict[int, str]:
    """Return what each descriptor leads to."""
    found: dict[int, str] = {}
    for link in _DESCRIPTOR_FOLDER.iterdir() if _DESCRIPTOR_FOLDER.is_dir() else ():
        try:
            found[int(link.name)] = str(link.readlink())
        except FileNotFoundError:
            continue  # the one that the list was read by
    return found


def open_files(folder: Path) -> set[tuple[int, str]]:
    """Return the descriptors that lead to files in *folder*, those that were removed too."""
    return {(number, path) for number, path in open_descriptors().items() if path.startswith(f"{folder}/")}

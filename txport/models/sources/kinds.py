"""What a file is that should have weights and has none, by its first bytes."""

from __future__ import annotations

from pathlib import Path

BEGINS = {
    b"version https://git-lfs": "a pointer of Git LFS; `git lfs pull` downloads the file",
    b"<": "a page of HTML or XML, such as a login page; download the file again",
    b"{": "JSON, such as the error message of a server; download the file again",
    b"GGUF": "GGUF, which is not read; take the folder that it was made from",
    b"PK\x03\x04": "a ZIP archive; if torch.save wrote it, name it pytorch_model.bin, otherwise unpack it",
    b"\x80": "a pickle; if torch.save wrote it, name it pytorch_model.bin",
    b"\x1f\x8b": "compressed with gzip; unpack it",
    b"BZh": "compressed with bzip2; unpack it",
    b"\xfd7zXZ": "compressed with xz; unpack it",
    b"\x28\xb5\x2f\xfd": "compressed with Zstandard; unpack it",
    b"\x89HDF": "HDF5, as Keras writes it; save the model with PyTorch (from_tf=True, save_pretrained)",
}
SAVED = (b"PK\x03\x04", b"\x80")  # files that torch.save writes begin so
TAR, TAR_OFFSET = b"ustar", 257


def kind_of(path: Path, *, but: tuple[bytes, ...] = ()) -> str:
    """Return what a file is, with advice; an empty string if that is unknown, or if it begins with one of `but`."""
    try:
        with path.open("rb") as stream:
            begin = stream.read(TAR_OFFSET + len(TAR))
    except OSError:
        return ""
    if not begin:
        return "empty; download or save it again"
    if begin[TAR_OFFSET:] == TAR:
        return "a tar archive; unpack it"
    if begin.startswith(but):
        return ""
    text = begin.lstrip()
    return next((kind for mark, kind in BEGINS.items() if begin.startswith(mark) or text.startswith(mark)), "")

"""Print 1 when this interpreter has no libpython that a linker can find, and nothing otherwise."""

import sysconfig
from pathlib import Path


def linkable() -> bool:
    """Whether `-lpython3.x` resolves in the directory that pyo3 hands to the linker."""
    directory = sysconfig.get_config_var("LIBDIR")
    library = sysconfig.get_config_var("LDLIBRARY")
    return bool(directory and library) and Path(directory, library).exists()


if __name__ == "__main__":
    print("" if linkable() else "1")

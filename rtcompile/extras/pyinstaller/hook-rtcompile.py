"""Names what PyInstaller does not see: modules that are imported by name, and the headers of rtcompile."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

hiddenimports = collect_submodules(
    "rtcompile", lambda name: not name.startswith("rtcompile.extras")
)
hiddenimports += ["cuda.pathfinder"]
datas = collect_data_files("rtcompile")

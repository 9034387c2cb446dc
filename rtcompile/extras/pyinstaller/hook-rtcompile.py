"""Names what PyInstaller does not find itself: modules that are imported by name, and rtcompile's headers."""

from PyInstaller.utils.hooks import collect_data_files, collect_submodules

hiddenimports = collect_submodules(
    "rtcompile", lambda name: not name.startswith("rtcompile.extras")
)
# Public functions import these extras, which need no optional package: `compile_many(executor=)`, launches,
# reproducers of crashes, and progress.
hiddenimports += ["rtcompile.extras.cluster.pages", "rtcompile.extras.launching.launch"]
hiddenimports += ["rtcompile.extras.reproducer"]
hiddenimports += ["rtcompile.extras.progress", "cuda.pathfinder"]
datas = collect_data_files("rtcompile")

"""Where tools come from: one file per kind of source, each with `load(...) -> list[ToolSpec]`; see ../load.py."""

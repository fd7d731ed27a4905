"""Reads tools from each kind of source: a file per kind with `load(...) -> list[ToolSpec]`; ../load.py lists them.

json_lines     one function per line, as OpenAI describes functions
openapi        OpenAPI documents; openapi_schema: their schemas as JSON Schema; openapi_requests: their requests
toolbench, api_bank, toolhop    the documents of these benchmarks
functions      plain Python functions
mcp            MCP servers
encyclopedia   search, retrieve and lookup over a corpus of passages
files          reads files; an error names file and row
"""

"""Programs that write data sets as verl reads them, and search indexes. Each has --help with an example.

qa, tools, reasoning, environments, corpus, mix    the programs
sources       a file per data set: its layout, licence, one row, and how it is read
rows          reads files of any layout and checks their rows
qa_rows       what question-answering sets share; tool_tasks: what benchmarks of tool calls share
"""

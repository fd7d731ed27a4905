"""Files that survive a kill at any moment. Imports nothing of verl_ext; every folder may use it.

files     write a file whole or not at all; hash it; lock a folder for one process
jsonl     read and append JSON lines
parquet   write questions as verl reads them
sqlite    open, check and copy SQLite databases
"""

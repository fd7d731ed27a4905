"""The demonstrations on which the tiny model of the shop's agents is trained; the last two are for small real models.

demonstrations       right and wrong demonstrations, as recipe/cold_start/train.py takes them
improvised           the random shop worlds in which they happen
sft_demonstrations   writes them as files for verl's SFTTrainer
gold                 single decisions on API-Bank, by rule from its gold calls: for +sft=gold
word_problems        the master and the math agent on GSM8K, by rule from its solutions: for +sft=gold
"""

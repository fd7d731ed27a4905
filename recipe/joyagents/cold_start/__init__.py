"""The demonstrations on which the tiny model of the shop's agents is trained; `gold` is for small real models.

demonstrations       right and wrong demonstrations, as recipe/cold_start/train.py takes them
improvised           the random shop worlds in which they happen
sft_demonstrations   writes them as files for verl's SFTTrainer
gold                 single decisions on API-Bank, by rule from its gold calls: for +sft=gold
"""

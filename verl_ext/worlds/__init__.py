"""Generated worlds: small data sets with their tools, on which the tiny recipes train in minutes; no download.

    "7 + 5 - 3 + 8"                                               arithmetic
    "Where was the director of the film Amber Harbor born?"       biographies (biography_questions asks them)
    "34 + price of Amber Harbor"                                  prices_and_sums
    "shop:Amber Harbor:guarantee + 7"                             shop
    "film:Amber Harbor:director:birthplace:twin"                  tool_chains

Each of these modules has `ensure(output_dir, ...)`, which a recipe names as `mas.prepare`. They share names (words for
invented names) and data_set (writes a data set once). `python -m verl_ext.worlds` writes one by hand.
"""

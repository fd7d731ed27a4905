"""Generated worlds: small data sets with their tools, on which the tiny recipes train in minutes; no download.

    module             data_source      a question
    arithmetic         tiny_arithmetic  "7 + 5 - 3 + 8"
    biographies        tiny_world       "Where was the director of the film Amber Harbor born?"
    prices_and_sums    tiny_pool        "34 + price of Amber Harbor"
    shop               its kind         "shop:Amber Harbor:guarantee + 7"
    tool_chains        tiny_tools       "film:Amber Harbor:director:birthplace:twin"

Each of these modules has `ensure(output_dir, ...)`, which a recipe names as `mas.prepare`. biography_questions asks
about biographies. They share names (words for invented names) and data_set (writes a data set once).
`python -m verl_ext.worlds` writes one by hand.
"""

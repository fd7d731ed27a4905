"""The multi-agent systems: a folder each, with workflow, prompts, rewards and the tiny model of its CPU recipe.

mhgpo            rewriter, reranker and answerer search for the answer of a question
deepagent        one agent searches for tools, calls them, and folds its history
joyagents        a master and four specialists with memories
puppeteer        an orchestrator chooses which agent acts next
smurfs           planner, executor, answer agent and verifier; a depth-first search over tools
solver_verifier  a solver and a verifier that alternate
baselines        CoT, ReWOO, Reflexion and other short systems, with the same tools as smurfs
cold_start       trains the tiny models; demonstrations by rule from gold
"""

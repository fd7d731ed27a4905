#!/usr/bin/env bash
# Table 1, rows "Puppeteer-Mono" (POOL=mono) and "Puppeteer" (POOL=mimas, titan): each task of TASKS, trained, and evaluated
# after training ("Evolved"). The training's validation at step 0 is "Initialized". Figures 2, 6, 8 and 9 are its metrics.
# Settings: common.sh.
. "$(dirname "$0")/common.sh"
check "$@"
for name in $TASKS; do
  prepare "$name"
  train "$name" "${task[@]}" "$@"
  evaluate "$name" "${task[@]}" "$@"
done

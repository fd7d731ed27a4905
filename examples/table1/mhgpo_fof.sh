#!/usr/bin/env bash
# Table 1, row "MHGPO-FoF": the three agents, trained on HotpotQA. Settings: common.sh.
. "$(dirname "$0")/common.sh"
trained_row mhgpo_fof +recipe=mhgpo mas.sampling.strategy=fof "$@"

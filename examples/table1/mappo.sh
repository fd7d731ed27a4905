#!/usr/bin/env bash
# Table 1, row "MAPPO": the three agents, trained on HotpotQA. Settings: common.sh.
. "$(dirname "$0")/common.sh"
trained_row mappo +recipe=mappo "$@"

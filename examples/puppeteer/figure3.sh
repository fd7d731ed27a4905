#!/usr/bin/env bash
# Figure 3: tokens and agents over the training for several prices λ of a token, on MMLU-Pro. Settings: common.sh.
. "$(dirname "$0")/common.sh"
check "$@"
prepare mmlu_pro
for price in 0 0.1 0.2 0.5; do
  train "price_$price" "${task[@]}" "mas.credit.returns.price=$price" "$@"
done

#!/usr/bin/env bash
# Figure 7: accuracy and tokens by width and depth, on the tasks of TASKS. W4D2 is the default of Figure 7, W3D4 that of
# Section 3. Settings: common.sh.
. "$(dirname "$0")/common.sh"
check "$@"
for name in $TASKS; do
  prepare "$name"
  for shape in W2D2 W4D2 W6D2 W2D4 W3D4 W4D4 W4D6; do
    depth=${shape#*D} width=${shape%D*}
    shaped=("mas.workflow.width=${width#W}" "mas.workflow.depth=$depth")
    train "${name}_$shape" "${task[@]}" "${shaped[@]}" "$@"
    evaluate "${name}_$shape" "${task[@]}" "${shaped[@]}" "$@"
  done
done

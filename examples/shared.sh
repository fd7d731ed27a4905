# What the scripts of these folders share: each sources this file first. Results that exist are not made again, so after a kill
# the same command continues. DRY_RUN=1 prints every command that an empty clone needs, one per line, and runs none of them.
#
# shellcheck shell=bash
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Local servers are never asked through a proxy.
export NO_PROXY="127.0.0.1,localhost${NO_PROXY:+,$NO_PROXY}" no_proxy="127.0.0.1,localhost${no_proxy:+,$no_proxy}"
servers=()
stop_servers() {  # and wait: the next command needs their memory
  local server
  for server in "${servers[@]}"; do kill "$server" 2>/dev/null && wait "$server" || true; done
}
trap stop_servers EXIT

# refuse_overrides PATTERN ARGUMENTS…: overrides of keys that the scripts set themselves (an extended regular expression).
refuse_overrides() {
  local override
  for override in "${@:2}"; do
    if [[ $override =~ ($1)= ]]; then
      echo "error: $override: the scripts set this themselves; another model is MODEL=… before the command" >&2
      exit 2
    fi
  done
}

# need PROGRAM: ends the script if it is missing.
need() {
  if [ -n "${DRY_RUN:-}" ] || command -v "$1" >/dev/null; then return; fi
  echo "error: $1 is not installed, or not on PATH" >&2
  exit 1
}

stage() { echo "== $(date +%T), $(df -h . | awk 'NR == 2 {print $4}') of disk free: $*" >&2; }

# Runs a command, or prints it.
run() { if [ -n "${DRY_RUN:-}" ]; then printf '%q ' "$@" && echo; else "$@"; fi; }

# True if the file exists; in a dry run nothing does.
have() { [ -z "${DRY_RUN:-}" ] && [ -e "$1" ]; }

# once FILE COMMAND…: runs the command unless FILE, which it makes as its last act, exists.
once() {
  if have "$1"; then echo "   there already: $1" >&2; else run "${@:2}"; fi
}

download() {
  run mkdir -p "$(dirname "$1")"
  run curl --fail --location --retry 10 --retry-all-errors --continue-at - --output "$1.part" "$2"
  run mv "$1.part" "$1"
}

# The token of the package's servers, if there is one, is not an argument: other users can read those.
healthy() {
  curl --noproxy '*' --max-time 5 -sf -K <(printf '%s' "${VERL_EXT_TOKEN:+oauth2-bearer = $VERL_EXT_TOKEN}") "$1" >/dev/null
}

# serve NAME URL COMMAND…: starts a server and waits until URL answers. Its output goes to NAME.log.
serve() {
  local name=$1 url=$2 server
  shift 2
  if [ -n "${DRY_RUN:-}" ]; then run "$@" && return; fi
  if healthy "$url"; then
    echo "error: a server already answers at $url, perhaps an earlier run's with other contents; stop it." >&2
    exit 1
  fi
  "$@" >"$name.log" 2>&1 &
  server=$!
  servers+=("$server")
  until healthy "$url"; do
    kill -0 "$server" 2>/dev/null || { tail "$name.log" >&2; echo "error: $name has ended, see $name.log" >&2; exit 1; }
    sleep 5
  done
}

# complete RESULTS: has every trajectory of an evaluation been answered?
complete() {
  [ -n "${DRY_RUN:-}" ] || python -c '
import json, sys
sources = json.load(open(sys.argv[1]))["data"].values()
sys.exit(any(source["failed"] or source["missing"] for source in sources))' "$1"
}

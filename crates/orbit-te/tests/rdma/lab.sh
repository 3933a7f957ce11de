# How the cases of the lab run the program beside this file, which is `engine` in the guest. A script sources it.

# Whether a command has failed before `await`, which waits longer than usual here.
await_long() {
  local tries
  for ((tries = 0; tries < 1200; tries++)); do
    "$@" && return
    sleep 0.05
  done
  fail "in vain: $*"
}

# The owner of memory, at b: `owner RAIL FAMILY COMPLETIONS BYTES`. Its process is $OWNER.
owner() {
  engine owner --device "rxe_b$1" --gid "$(gid "rxe_b$1" "$2")" --completions "$3" --bytes "$4" \
    --at "$LISTEN:7411" --limit 400 > /tmp/owner.txt 2>&1 &
  OWNER=$!
  await listens 7411
}

# Waits for the owner's end, which the other side has told it to come to.
owner_ends() { wait "$OWNER" || { cat /tmp/owner.txt; fail "the owner ends with $?"; }; }

# The other side, at a: `user moves RAIL FAMILY COMPLETIONS BYTES MORE…`.
user() {
  engine "$1" --device "rxe_a$2" --gid "$(gid "rxe_a$2" "$3")" --completions "$4" --bytes "$5" --at "$LAB_PEER:7411" \
    --limit 400 "${@:6}"
}

# Transfers of all kinds, from a to b and back: `moves RAIL FAMILY COMPLETIONS BYTES`. In `two-vm` both guests call it.
moves() {
  if [ "$LAB_HOST" != a ]; then LISTEN=$LAB_ADDRESS owner "$@"; fi
  [ "$LAB_HOST" = both ] || meet
  if [ "$LAB_HOST" != b ]; then user moves "$@" || { cat /tmp/owner.txt; fail "moves ends with $?"; }; fi
  if [ "$LAB_HOST" != a ]; then owner_ends; fi
}

# Traffic on rail 0 while something is broken: `faults BREAKS MENDS MORE…`; both are commands, and the rest is the program's.
faults() {
  rm -f /tmp/steady /tmp/mended
  LISTEN=$LAB_ADDRESS owner 0 4 adaptive $((16 << 20))
  user faults 0 4 adaptive $((16 << 20)) --steady /tmp/steady --mended /tmp/mended "${@:3}" & local traffic=$!
  ended() { [ -e /tmp/steady ] || ! kill -0 $traffic 2> /dev/null; }
  await_long ended
  eval "$1"
  eval "$2"
  touch /tmp/mended
  wait $traffic || { cat /tmp/owner.txt; fail "faults ends with $?"; }
  kill "$OWNER"
  wait "$OWNER" || true
}

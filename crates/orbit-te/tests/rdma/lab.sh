# How the cases of the lab run the program beside this file, which is `engine` in the guest. A script sources it.

# The owner of memory, at b: `owner RAIL FAMILY COMPLETIONS BYTES`. Its process is $OWNER.
owner() {
  # The last owner may still be giving back what it had.
  local device=rxe_b$1
  free() { ! listens 7411 && ! rdma resource show | grep "$device: .* ctx [1-9]" > /dev/null; }
  await free
  engine owner --device "rxe_b$1" --gid "$(gid "rxe_b$1" "$2")" --completions "$3" --bytes "$4" \
    --at "$LAB_ADDRESS:7411" --limit 400 > /tmp/owner.txt 2>&1 &
  OWNER=$!
  await grep -qs there /tmp/owner.txt
}

# Waits for the owner's end, which the other side has told it to come to.
owner_ends() { wait "$OWNER" || { cat /tmp/owner.txt; fail "the owner ends with $?"; }; }

# The other side, at a: `user moves RAIL FAMILY COMPLETIONS BYTES MORE…`.
EXEC=
user() {
  $EXEC engine "$1" --device "rxe_a$2" --gid "$(gid "rxe_a$2" "$3")" --completions "$4" --bytes "$5" --at "$LAB_PEER:7411" \
    --limit 400 "${@:6}"
}

# Transfers of all kinds, from a to b and back: `moves RAIL FAMILY COMPLETIONS BYTES`. In `two-vm` both guests call it.
moves() {
  if [ "$LAB_HOST" != a ]; then owner "$@"; fi
  [ "$LAB_HOST" = both ] || meet
  if [ "$LAB_HOST" != b ]; then user moves "$@" || { cat /tmp/owner.txt; fail "moves ends with $?"; }; fi
  if [ "$LAB_HOST" != a ]; then owner_ends; fi
}

# Traffic on rail 0 while something is broken: `faults BREAKS MENDS MORE…`; both are commands, and the rest is the program's.
faults() {
  owner 0 4 adaptive $((16 << 20))
  traffic "${@:3}"
  eval "$1"
  eval "$2"
  touch /tmp/mended
  wait "$TRAFFIC" || { cat /tmp/owner.txt; fail "faults ends with $?"; }
  kill "$OWNER"
  wait "$OWNER" || true
}

# Traffic of the owner's blocks, until /tmp/mended is there; it runs when this returns. Its process is $TRAFFIC.
traffic() {
  rm -f /tmp/steady /tmp/mended
  EXEC=exec user faults 0 4 adaptive $((16 << 20)) --owner "$OWNER" --steady /tmp/steady --mended /tmp/mended "$@" &
  TRAFFIC=$!
  runs() { [ -e /tmp/steady ] || ! kill -0 $TRAFFIC 2> /dev/null; }
  await runs || await runs
}

# Takes the losses off an interface, and fails where nothing was lost.
dropped() {
  tc -s qdisc show dev "$1" | grep 'dropped [1-9]'
  tc qdisc del dev "$1" root
}

# So many users, one after the other, killed in the middle: the owner gives back what it had for each, and serves the next.
killed_users() {
  owner 0 4 adaptive $((16 << 20))
  local round before
  alone() { rdma resource show | grep 'rxe_b0: .* qp 1 ' > /dev/null; }
  killed_user
  await alone
  sleep 2
  # What is made for the first peer stays for all.
  before=$(owned)
  for ((round = 1; round < $1; round++)); do
    killed_user
    as_before() { [ "$(owned)" = "$before" ]; }
    (await as_before) || fail "before: $before
now: $(owned)"
  done
  user moves 0 4 adaptive $((5 << 20))
  owner_ends
}

killed_user() {
  traffic
  kill -KILL "$TRAFFIC"
  wait "$TRAFFIC" || true
}

# What the owner has: of verbs, and files.
owned() { rdma resource show | grep rxe_b0; ls "/proc/$OWNER/fd" | wc -l; }

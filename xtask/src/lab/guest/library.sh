# What commands in a guest may want; each has it already, and these variables: LAB_TOPOLOGY; LAB_HOST, which is `a` or `b`, or
# `both` where one guest is both; LAB_ADDRESS and LAB_PEER, where connections that are no rail go to, here and at the other end;
# LAB_MTU.

. /lab/topology.sh

fail() {
  echo "$*" >&2
  exit 1
}

# Waits until a command succeeds, for at most 10 s.
await() {
  local tries
  for ((tries = 0; tries < 200; tries++)); do
    "$@" && return
    sleep 0.05
  done
  fail "in vain: $*"
}

# Both guests of `two-vm` wait here for each other. Each meeting has a port of its own.
meet() {
  LAB_MEETINGS=$((LAB_MEETINGS + 1))
  if [ "$LAB_HOST" = a ]; then
    nc -l -p $LAB_MEETINGS < /dev/null > /dev/null
  else
    while ! (: < "/dev/tcp/$LAB_PEER/$LAB_MEETINGS") 2> /dev/null; do sleep 0.05; done
  fi
}

# The index of a device's GID: `gid rxe_a0 4` for an IPv4 address, `gid rxe_a0 6` for a global IPv6 one.
gid() {
  local begins entry address
  case $2 in
  4) begins=0000:0000:0000:0000:0000:ffff: ;;
  6) begins=fd00: ;;
  esac
  for entry in "/sys/class/infiniband/$1/ports/1/gids"/*; do
    read -r address < "$entry"
    case $address in "$begins"*) echo "${entry##*/}" && return ;; esac
  done
  fail "$1 has no GID of IPv$2"
}

# Whether a device's port is in a state: `port_is rxe_a0 ACTIVE`.
port_is() { grep -q ": $2\$" "/sys/class/infiniband/$1/ports/1/state"; }

# Whether somebody listens at a TCP port.
listens() { grep -qi "$(printf ':%04X [0-9A-F]*:0000 0A' "$1")" /proc/net/tcp /proc/net/tcp6; }

# All bytes that an interface has carried.
carried() { echo $(($(cat "/sys/class/net/$1/statistics/rx_bytes") + $(cat "/sys/class/net/$1/statistics/tx_bytes"))); }

# Measures by a program of perftest, from a to b: `measure ib_write_bw 0 4 65536 300`, that is rail 0, GIDs of IPv4, so many bytes
# so many times. In `two-vm` both guests call it. The bytes must have been on the cable.
measure() {
  local program=$1 rail=$2 family=$3 size=$4 times=$5 end here
  end=${LAB_HOST/both/a}$rail
  here=$(carried "$end")
  if [ "$LAB_HOST" != a ]; then
    one_side b > /tmp/server.txt 2>&1 &
    await listens 18515
  fi
  [ "$LAB_HOST" = both ] || meet
  if [ "$LAB_HOST" != b ]; then
    one_side a "$LAB_PEER" || fail "$program ends with $?"
  fi
  if [ "$LAB_HOST" != a ]; then
    wait $! || { cat /tmp/server.txt; fail "the server of $program ends with $?"; }
  fi
  here=$(($(carried "$end") - here))
  echo "$here bytes on $end"
  [ $here -ge $((size * times)) ] || fail "that is less than $times times $size"
}

# One side of `measure`, in whose variables it finds the rest.
one_side() { "$program" -d "rxe_$1$rail" -x "$(gid "rxe_$1$rail" "$family")" -s "$size" -n "$times" -F "${@:2}"; }

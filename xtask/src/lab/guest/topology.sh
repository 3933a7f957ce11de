# The networks of a guest. A script sources it for `mend_rail`; the first process also calls `lay`.
#
# `rails`: rail N is a cable with a switch in the middle, whose two ends lie in this one guest:
#     rxe_aN on aN ── paN ┤brN├ pbN ── bN with rxe_bN
# All of it is in one network namespace, since Soft-RoCE carries nothing elsewhere. So that packets for an address of this very
# machine leave through the cable all the same, rules before the table of local addresses say so.
# `two-vm`: rail N is a cable between two guests; the first has aN and rxe_aN, the second bN and rxe_bN. A third cable, `ctl`,
# carries whatever must not suffer from what is done to the rails.
#
# Addresses: rail N has 10.9.N.1 and fd00:9:N::1 at a, 10.9.N.2 and fd00:9:N::2 at b. `ctl` has 10.8.0.1 and 10.8.0.2.
#
# To break a rail: carrier loss by `ip link set paN down` (seen at a) or `pbN` (seen at b); lost and late packets by netem on pbN
# (from a to b) or paN (from b to a), never on aN or bN, where the sender itself would be told. An interface that was down forgets
# its routes: `mend_rail N` after `ip link set aN up`. In `two-vm` there is no switch to break.

lay() {
  case $LAB_TOPOLOGY in
  rails)
    for rail in 0 1; do lay_rail $rail; done
    for family in -4 -6; do
      # The table of local addresses comes after the rules of the rails.
      ip $family rule add pref 100 lookup local
      ip $family rule del pref 0
    done
    ;;
  two-vm) lay_links ;;
  esac
}

lay_rail() {
  local n=$1 table=$((100 + 2 * $1)) each
  ip -batch - <<END
link add br$n mtu $LAB_MTU type bridge
link add a$n mtu $LAB_MTU type veth peer name pa$n mtu $LAB_MTU
link add b$n mtu $LAB_MTU type veth peer name pb$n mtu $LAB_MTU
END
  for each in br$n pa$n pb$n; do echo 1 > /proc/sys/net/ipv6/conf/$each/disable_ipv6; done
  for each in a$n b$n; do
    echo 0 > /proc/sys/net/ipv4/conf/$each/rp_filter
    echo 1 > /proc/sys/net/ipv4/conf/$each/accept_local
    echo 1 > /proc/sys/net/ipv4/conf/$each/arp_ignore
    echo 0 > /proc/sys/net/ipv6/conf/$each/accept_dad
  done
  ip -batch - <<END
link set pa$n master br$n up
link set pb$n master br$n up
link set br$n up
link set a$n up
link set b$n up
END
  for each in "-4 10.9.$n.1 10.9.$n.2" "-6 fd00:9:$n::1 fd00:9:$n::2"; do
    set -- $each
    ip $1 -batch - <<END
rule add pref 10 iif a$n lookup local
rule add pref 10 iif b$n lookup local
rule add pref 20 oif a$n lookup $table
rule add pref 20 oif b$n lookup $((table + 1))
rule add pref 21 from $2 to $3 lookup $table
rule add pref 21 from $3 to $2 lookup $((table + 1))
END
  done
  mend_rail $n
  rdma link add rxe_a$n type rxe netdev a$n
  rdma link add rxe_b$n type rxe netdev b$n
}

# Gives a rail whose interfaces are up its addresses, routes and neighbours (again).
mend_rail() {
  local n=$1
  if [ "$LAB_TOPOLOGY" = two-vm ]; then
    mend_end $n $LAB_HOST $([ "$LAB_HOST" = a ] && echo 1 || echo 2)
    return
  fi
  local table=$((100 + 2 * n)) a b
  mend_end $n a 1
  mend_end $n b 2
  read -r a < /sys/class/net/a$n/address
  read -r b < /sys/class/net/b$n/address
  for each in "-4 10.9.$n.1 10.9.$n.2" "-6 fd00:9:$n::1 fd00:9:$n::2"; do
    set -- $each
    ip $1 -batch - <<END
route replace table $table $3 dev a$n src $2
route replace table $((table + 1)) $2 dev b$n src $3
neigh replace $3 lladdr $b dev a$n nud permanent
neigh replace $2 lladdr $a dev b$n nud permanent
END
  done
}

# The addresses of one end.
mend_end() {
  ip -4 addr replace 10.9.$1.$3/24 dev $2$1
  ip -6 addr replace fd00:9:$1::$3/64 dev $2$1 nodad
}

# The cables between two guests, told apart by their last digit: 0 and 1 are the rails, 9 is `ctl`.
lay_links() {
  local path mac digit
  for path in /sys/class/net/eth*; do
    read -r mac < $path/address
    digit=${mac##*:0}
    case $digit in
    0 | 1)
      ip link set ${path##*/} name $LAB_HOST$digit mtu $LAB_MTU
      echo 0 > /proc/sys/net/ipv6/conf/$LAB_HOST$digit/accept_dad
      ip link set $LAB_HOST$digit up
      mend_rail $digit
      rdma link add rxe_$LAB_HOST$digit type rxe netdev $LAB_HOST$digit
      ;;
    9)
      ip link set ${path##*/} name ctl
      ip addr add $LAB_ADDRESS/24 dev ctl
      ip link set ctl up
      ;;
    esac
  done
}

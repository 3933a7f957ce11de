# The engine between the two ports of a rail beside perftest's programs, in one boot: `ROUNDS` rounds, whose order turns. Prints lines of JSON of
# `orbit-te bench`, after a line `round N`, and `perf PROGRAM SIZE DEPTH` with the numbers of a program's row behind it.

serve() {
  orbit-te serve --listen 127.0.0.1:7000 --name mem --bytes 1MiB --no-same-host --rdma-device rxe_b0 > /dev/null 2> /tmp/serve.txt &
  await listens 7000
}

# A program of perftest from rxe_a0 to rxe_b0: `perf ib_write_bw SIZE DEPTH TIMES`; a depth of 0 for those that have none.
perf() {
  local program=$1 size=$2 depth=$3 times=$4 rail=0 family=4 options=() server row
  [ "$depth" = 0 ] || options=(-t "$depth")
  one_side b "${options[@]}" > /tmp/server.txt 2>&1 &
  server=$!
  await listens 18515
  row=$(one_side a "${options[@]}" "$LAB_PEER" 2> /dev/null | grep "^ *$size ") || row=
  wait $server || row=
  # Not told, if it failed: the round is short of it then.
  [ -z "$row" ] || echo "perf $program $size $depth $row"
}

ours() {
  orbit-te bench --peer 127.0.0.1:7000/mem --route rdma --no-same-host --rdma-device rxe_a0 --json --op "$1" --block "$2" --depth "$3" \
    --seconds "$SECONDS_EACH" 2> /dev/null
}

turn() {
  case $1 in
  0) ours write 64KiB,1MiB 16 ;;
  1) perf ib_write_bw 65536 16 400; perf ib_write_bw 1048576 16 60 ;;
  2) ours read 64KiB,1MiB 16 ;;
  3) perf ib_read_bw 65536 16 400; perf ib_read_bw 1048576 16 60 ;;
  4) ours write 8B,4KiB 1 ;;
  5) perf ib_write_lat 8 0 1500; perf ib_write_lat 4096 0 1500 ;;
  6) perf ib_write_bw 8 1 1500; perf ib_write_bw 4096 1 1500 ;;
  esac
}

serve
for ((round = 1; round <= ROUNDS; round++)); do
  echo "round $round"
  # What is held against each other stays side by side.
  for first in 0 2 4; do
    for ((k = 0; k < 3; k++)); do
      each=$((first + (k + round) % 3))
      [ $first = 4 ] || [ $each -lt $((first + 2)) ] || continue
      turn $each || { cat /tmp/serve.txt; fail "turn $each failed"; }
    done
  done
done
register rxe_a0 1024 "$REGISTERED"

#!/bin/bash
# The guest's first process: makes the machine ready, runs the commands in their order, and switches off.
# It reports to the host on its first port, between what the commands print; see transcript.rs.

export PATH=/usr/local/bin:/bin HOME=/tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox --install -s /bin 2>/dev/null # what is there as a program of its own stays
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts /tmp /run /out
mount -t devpts pts /dev/pts
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
ulimit -l unlimited
dmesg -n 4 # the console is for what goes wrong

while read -r module; do insmod "/lab/modules/$module.ko"; done < /lab/modules/order

# The ports that machine.rs gives it. They come a moment after their driver.
stream=/dev/vport0p1 files=/dev/vport0p2
while [ ! -c $stream ] || [ ! -c $files ]; do sleep 0.02; done
exec 3> $stream
report() { printf '\x1elab %s\n' "$*" >&3; }

set -a
. /lab/settings
set +a
ip link set lo up
cd /tmp
bash -ex -c '. /lab/topology.sh; lay' > /out/topology.txt 2>&1 || cat /out/topology.txt >&3
. /lab/library.sh

# Runs a command, and ends whatever of it is left: a command is a process group.
run() {
  local number=$1 limit command watch first code
  read -r limit < "/lab/commands/$number.limit"
  LAB_MEETINGS=$((7000 + number * 20))
  [ "$LAB_TOPOLOGY" != two-vm ] || meet
  report begin "$number"
  export LAB_MEETINGS
  setsid bash "/lab/commands/$number.sh" < /dev/null >&3 2>&3 3>&- & command=$!
  sleep "$limit" 3>&- & watch=$!
  wait -n -p first $command $watch
  code=$?
  kill -KILL -- -$command $watch
  wait $command $watch
  if [ "$first" = $command ]; then report end "$number" $code; else report limit "$number"; fi
}

report ready
number=0
while [ -e "/lab/commands/$number.sh" ]; do
  run $number 2>/dev/null
  number=$((number + 1))
done
dmesg > /out/dmesg.txt
tar -C /out -cf $files .
report over
poweroff -f

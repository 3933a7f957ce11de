//! One boot: the guests of a topology, from their start to their end or their limit.

use super::image::{self, Carried, Settings, Task};
use super::kernel::{Choice, Kernel};
use super::kit::Kit;
use super::machine::{Hardware, Machine, Plug, cable};
use super::topology::Topology;
use super::transcript::Event;
use std::time::{Duration, Instant};

/// How long guests may take beside their commands: to start, and to bring their files together. A busy host takes a fifth of it.
const BESIDE: Duration = Duration::from_secs(60);
/// Between two looks at the guests.
const PAUSE: Duration = Duration::from_millis(20);

/// All that boots need: QEMU, a kernel, and the files of every guest.
pub(super) struct Lab {
    kit: Kit,
    kernel: Kernel,
    base: Vec<u8>,
}

/// What is to be booted.
pub(super) struct Plan {
    pub(super) topology: Topology,
    pub(super) hardware: Hardware,
    /// The commands of each guest. Where there are two they have as many, and begin each together.
    pub(super) tasks: Vec<Vec<Task>>,
    pub(super) carried: Carried,
}

impl Lab {
    /// With the kernel that is here, or else the newest.
    pub(super) fn obtain(choice: Choice) -> anyhow::Result<Lab> {
        let kit = Kit::obtain()?;
        let kernel = Kernel::obtain(choice, &kit)?;
        Lab::of(kit, kernel)
    }

    /// With the newest kernel.
    pub(super) fn newest(choice: Choice) -> anyhow::Result<Lab> {
        let kit = Kit::obtain()?;
        let kernel = Kernel::newest(choice, &kit)?;
        Lab::of(kit, kernel)
    }

    fn of(kit: Kit, kernel: Kernel) -> anyhow::Result<Lab> {
        let base = image::base(&kit, &kernel)?;
        Ok(Lab { kit, kernel, base })
    }

    /// The kernel's version.
    pub(super) fn kernel(&self) -> String {
        self.kernel.version()
    }

    /// Boots, and looks on until all guests have ended or time is up. `hear` gets what they say, with their places.
    pub(super) fn boot(
        &self,
        plan: &Plan,
        mut hear: impl FnMut(usize, Event) -> anyhow::Result<()>,
    ) -> anyhow::Result<Vec<Machine>> {
        let mut machines = self.start(plan)?;
        let limits = |tasks: &Vec<Task>| tasks.iter().map(|task| task.limit).sum::<Duration>();
        let until = Instant::now() + BESIDE + plan.tasks.iter().map(limits).max().unwrap_or_default();
        loop {
            // Asked before the stream is read: what an ended guest said is complete.
            let mut running = false;
            for machine in &mut machines {
                running |= !machine.has_ended()?;
            }
            for (place, machine) in machines.iter_mut().enumerate() {
                machine.events()?.into_iter().try_for_each(|event| hear(place, event))?;
            }
            if !running || Instant::now() > until {
                return Ok(machines);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn start(&self, plan: &Plan) -> anyhow::Result<Vec<Machine>> {
        let Plan { topology, hardware, tasks, carried } = plan;
        let mut plugs: [Vec<Plug>; 2] = [Vec::new(), Vec::new()];
        for digit in topology.cables() {
            for (side, plug) in plugs.iter_mut().zip(cable(*digit)?) {
                side.push(plug);
            }
        }
        let mut machines = Vec::new();
        for ((host, tasks), plugs) in topology.hosts().iter().zip(tasks).zip(&plugs) {
            let settings = Settings { topology: *topology, host, mtu: hardware.mtu };
            let own = image::own(&settings, tasks, carried, &self.kit)?;
            machines.push(Machine::start(&self.kit, &self.kernel, *hardware, &[&self.base, &own], plugs)?);
        }
        Ok(machines)
    }
}

/// What a guest that came to no end left to be read: the last lines of its console, and QEMU's words.
pub(super) fn last_words(machine: &Machine) -> anyhow::Result<String> {
    const LINES: usize = 60;
    let console = machine.console()?;
    let lines: Vec<&str> = console.lines().collect();
    let mut text = format!(
        "the last of the guest's console:\n{}\n",
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    );
    let words = machine.words()?;
    if !words.trim().is_empty() {
        text.push_str(&format!("QEMU said:\n{}\n", words.trim()));
    }
    Ok(text)
}

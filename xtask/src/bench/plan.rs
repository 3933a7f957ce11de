//! What is moved: points, the walk of a point over the buffers, and the bytes themselves. Rule: the same values as the
//! other engines' workers use, so that every number compares.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::fmt;

pub(super) const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;
pub(super) const GIB: f64 = (1u64 << 30) as f64;

/// Every process has one buffer of this size.
pub(super) const BUFFER_BYTES: usize = 128 * MIB;

/// Distinct submissions in one walk, at most.
const SLOTS_MAX: usize = 1024;

/// Which way the bytes go, as the initiator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Op {
    /// From the initiator to the target.
    Write,
    /// From the target to the initiator.
    Read,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Op::Write => "write",
            Op::Read => "read",
        })
    }
}

/// In what form the bytes travel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    /// A batch of blocks.
    #[default]
    Blocks,
    /// A prepared list, whose pieces lie scattered at both sides.
    List,
    /// The payload of a notification.
    Notification,
}

/// What one repetition does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) struct Case {
    pub(super) op: Op,
    pub(super) block: usize,
    /// Blocks in one submission. From two on, each block is followed by a gap of its own size on both sides.
    pub(super) batch: usize,
    /// Submissions in flight.
    #[serde(default = "one")]
    pub(super) depth: usize,
    /// Every submission moves the same bytes.
    #[serde(default)]
    pub(super) hot: bool,
    #[serde(default)]
    pub(super) form: Form,
    /// The bytes are verified by CRC32C, end to end.
    #[serde(default)]
    pub(super) checksum: bool,
}

fn one() -> usize {
    1
}

impl Case {
    pub(super) fn plain(op: Op, point: Point) -> Case {
        let Point { block, batch } = point;
        Case { op, block, batch, depth: 1, hot: false, form: Form::Blocks, checksum: false }
    }

    /// Whether it needs nothing but a batch of blocks and a wait, as every engine has.
    pub(super) fn is_plain(&self) -> bool {
        *self == Case::plain(self.op, Point { block: self.block, batch: self.batch })
    }

    pub(super) fn plan(&self) -> Plan {
        Plan::new(self.block, self.batch, self.hot)
    }

    pub(super) fn submission_gib(&self) -> f64 {
        (self.block * self.batch) as f64 / GIB
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form {
            Form::Blocks => write!(f, "{} {}", self.op, Size(self.block))?,
            Form::List => write!(f, "{} list, {}", self.op, Size(self.block))?,
            Form::Notification => write!(f, "notification, {}", Size(self.block))?,
        }
        if self.batch > 1 {
            write!(f, " × {}", self.batch)?;
        }
        if self.depth > 1 {
            write!(f, ", depth {}", self.depth)?;
        }
        if self.hot {
            f.write_str(", hot")?;
        }
        if self.checksum {
            f.write_str(", CRC32C")?;
        }
        Ok(())
    }
}

/// A size of block and how many make a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) block: usize,
    pub(super) batch: usize,
}

pub(super) const POINTS: [Point; 7] = [
    Point { block: 4 * KIB, batch: 1 },
    Point { block: 64 * KIB, batch: 1 },
    Point { block: MIB, batch: 1 },
    Point { block: 16 * MIB, batch: 1 },
    Point { block: 64 * MIB, batch: 1 },
    Point { block: 4 * KIB, batch: 128 },
    Point { block: 64 * KIB, batch: 128 },
];

impl std::str::FromStr for Point {
    type Err = anyhow::Error;

    /// `64K:128`, or `1M` for one block.
    fn from_str(text: &str) -> anyhow::Result<Point> {
        let (size, batch) = text.split_once(':').unwrap_or((text, "1"));
        let (digits, unit) = match size.chars().last() {
            Some('K' | 'k') => (&size[..size.len() - 1], KIB),
            Some('M' | 'm') => (&size[..size.len() - 1], MIB),
            _ => (size, 1),
        };
        let block = digits.parse::<usize>().ok().and_then(|n| n.checked_mul(unit));
        let block = block.with_context(|| format!("{size:?} is no size such as 4K or 16M"))?;
        let batch: usize = batch.parse().with_context(|| format!("{batch:?} is no number of blocks"))?;
        let stride = if batch == 1 { block } else { block.saturating_mul(2) };
        if block == 0 || block % 8 != 0 || batch == 0 || stride.saturating_mul(batch) > BUFFER_BYTES {
            bail!(
                "{text}: a block is a multiple of 8 bytes, and a submission with its gaps fits into 128 MiB"
            );
        }
        Ok(Point { block, batch })
    }
}

/// A size as people write it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size(pub(super) usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            n if n >= MIB && n % MIB == 0 => format!("{} MiB", n / MIB),
            n if n >= KIB && n % KIB == 0 => format!("{} KiB", n / KIB),
            n => format!("{n} B"),
        };
        f.pad(&text)
    }
}

/// A walk over the buffer: submissions of blocks, at the same offsets on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) block: usize,
    pub(super) batch: usize,
    pub(super) stride: usize,
    /// Distinct submissions; submission `n` of a run is the walk's `n % slots`.
    pub(super) slots: usize,
}

impl Plan {
    pub(super) fn new(block: usize, batch: usize, hot: bool) -> Plan {
        let stride = if batch == 1 { block } else { 2 * block };
        let slots = if hot { 1 } else { (BUFFER_BYTES / (stride * batch)).clamp(1, SLOTS_MAX) };
        Plan { block, batch, stride, slots }
    }

    /// Where block `index` of submission `slot` is, in both buffers.
    pub(super) fn offset(&self, slot: usize, index: usize) -> usize {
        (slot * self.batch + index) * self.stride
    }

    /// How much of the buffer the walk covers, gaps counted.
    pub(super) fn span(&self) -> usize {
        self.stride * self.batch * self.slots
    }
}

/// The bytes of a repetition: splitmix64 of the word's index, XOR the repetition's seed.
pub(super) fn pattern_word(index: u64, seed: u64) -> u64 {
    let mut z = (index.wrapping_add(1)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) ^ seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_read_as_people_write_them() {
        assert_eq!("4K:128".parse::<Point>().unwrap(), Point { block: 4096, batch: 128 });
        assert_eq!("64M".parse::<Point>().unwrap(), Point { block: 64 * MIB, batch: 1 });
        for bad in ["", "K", "4X", "0", "12", "4K:0", "4K:x", "256M", "1M:128", "99999999999999999999K"] {
            assert!(bad.parse::<Point>().is_err(), "{bad}");
        }
    }

    #[test]
    fn walks_stay_inside_the_buffer() {
        for point in POINTS {
            let plan = Plan::new(point.block, point.batch, false);
            assert!(plan.span() <= BUFFER_BYTES, "{point:?}");
            assert!(plan.offset(plan.slots - 1, plan.batch - 1) + plan.block <= plan.span());
        }
        assert_eq!(Plan::new(64 * MIB, 1, false).slots, 2);
        assert_eq!(Plan::new(64 * KIB, 128, false).slots, 8);
        assert_eq!(Plan::new(4 * KIB, 1, false).slots, 1024);
        assert_eq!(Plan::new(MIB, 1, true).slots, 1);
    }

    #[test]
    fn the_pattern_is_splitmix64() {
        assert_eq!(pattern_word(0, 0), 0xE220_A839_7B1D_CDAF);
        assert_eq!(pattern_word(1, 0), 0x6E78_9E6A_A1B9_65F4);
        assert_eq!(pattern_word(1, 5), 0x6E78_9E6A_A1B9_65F4 ^ 5);
    }
}

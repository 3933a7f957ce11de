//! Places in a segment as `put` and `get` take them: `HOST:PORT/NAME[@OFFSET]` or a token. Rule: what is wrong with the words is
//! said before anybody is called.

use crate::failure::Failure;
use crate::size::Size;
use clap::Args;
use orbit_te::{Access, Engine, Segment, SegmentToken};
use std::time::Duration;

/// How long opening a segment may take.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// A segment, and where in it to begin.
#[derive(Debug, Clone, Args)]
pub(crate) struct Place {
    /// HOST:PORT/NAME of a served segment, or its token; `@OFFSET` after it is where to begin.
    #[arg(value_name = "SEGMENT[@OFFSET]")]
    segment: String,
    /// Where in the segment to begin, instead of `@OFFSET`; bytes, or with KiB, MiB, GiB. Default 0.
    #[arg(long, value_name = "SIZE")]
    offset: Option<Size>,
}

impl Place {
    /// The segment's address and the offset.
    fn split(&self) -> Result<(&str, u64), Failure> {
        let (segment, at) = match self.segment.rsplit_once('@') {
            Some((segment, offset)) => {
                let offset = offset.parse::<Size>().map_err(|why| {
                    Failure::Usage(format!("the offset after `@` in `{}`: {why}", self.segment))
                })?;
                (segment, Some(offset))
            }
            None => (self.segment.as_str(), None),
        };
        match (at, self.offset) {
            (Some(_), Some(_)) => Err(Failure::Usage(
                "the offset is given twice, by `@` and by `--offset`; leave one out".to_string(),
            )),
            (at, option) => Ok((segment, at.or(option).unwrap_or(Size(0)).0)),
        }
    }

    /// Checks the words alone.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        check(self.split()?.0)
    }

    /// Opens the segment, and checks the offset and the right to do this.
    pub(crate) fn open(&self, engine: &Engine, needed: Access) -> Result<(Segment, u64), Failure> {
        let (text, offset) = self.split()?;
        let segment = open(engine, text, needed)?;
        if offset >= segment.len() {
            return Err(Failure::Usage(format!(
                "offset {offset} is past the end of segment `{}`, which has {} bytes",
                segment.name(),
                segment.len()
            )));
        }
        Ok((segment, offset))
    }
}

/// Refuses a damaged token; addresses are checked when they are used.
pub(crate) fn check(text: &str) -> Result<(), Failure> {
    if text.trim_start().starts_with("otseg") {
        text.parse::<SegmentToken>().map_err(|e| Failure::Usage(e.to_string()))?;
    }
    Ok(())
}

/// Opens a segment that permits what is needed.
pub(crate) fn open(engine: &Engine, text: &str, needed: Access) -> Result<Segment, Failure> {
    check(text)?;
    let segment = engine.open(text).wait(OPEN_LIMIT)?;
    if !segment.access().contains(needed) {
        let verb = if needed.contains(Access::REMOTE_WRITE) { "written" } else { "read" };
        return Err(Failure::Peer(format!(
            "segment `{}` may not be {verb}; its owner serves it without that right",
            segment.name()
        )));
    }
    Ok(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(segment: &str, offset: Option<u64>) -> Option<(String, u64)> {
        let place = Place { segment: segment.to_string(), offset: offset.map(Size) };
        place.split().ok().map(|(segment, offset)| (segment.to_string(), offset))
    }

    #[test]
    fn places_split_at_the_last_at_sign() {
        let ok = |segment: &str, offset| Some((segment.to_string(), offset));
        assert_eq!(check("h:1/n", None), ok("h:1/n", 0));
        assert_eq!(check("h:1/n@513", None), ok("h:1/n", 513));
        assert_eq!(check("[::1]:1/a/b@4KiB", None), ok("[::1]:1/a/b", 4096));
        assert_eq!(check("otseg1:abc", Some(7)), ok("otseg1:abc", 7));
        assert_eq!(check("h:1/n@", None), None);
        assert_eq!(check("h:1/n@x", None), None);
        assert_eq!(check("h:1/n@1", Some(1)), None);
    }
}

//! Sizes as people write them. Rule: exact and strict; a unit that means two things is refused.

use std::fmt;
use std::str::FromStr;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Size, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = match unit.trim_start() {
            "" => Some(1),
            word => UNITS.iter().find(|(name, _)| *name == word).map(|(_, factor)| *factor),
        };
        match (number.parse::<u64>(), factor) {
            (Ok(number), Some(factor)) => number
                .checked_mul(factor)
                .map(Size)
                .ok_or_else(|| format!("`{text}` is more bytes than a 64-bit number holds")),
            (Err(_), Some(_)) if digits > 0 => {
                Err(format!("`{text}` is more bytes than a 64-bit number holds"))
            }
            _ => Err(format!(
                "`{text}` is no size; write whole bytes (`4096`) or a unit of 1024 (`4KiB`, `16MiB`, `1GiB`, `2TiB`)"
            )),
        }
    }
}

/// A size that may not be zero, as a clap value parser.
pub(crate) fn nonzero(text: &str) -> Result<Size, String> {
    match text.parse::<Size>()? {
        Size(0) => Err("it can't be zero".to_string()),
        size => Ok(size),
    }
}

impl fmt::Display for Size {
    /// In the largest unit that divides it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |(_, factor): &&(&str, u64)| self.0 >= *factor && self.0 % factor == 0;
        let (unit, factor) = UNITS.iter().find(whole).copied().unwrap_or(("B", 1));
        f.pad(&format!("{} {unit}", self.0 / factor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        let rows = [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("4KiB", 4096),
            ("16 MiB", 16 << 20),
            ("3GiB", 3 << 30),
            ("1TiB", 1 << 40),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in rows {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "KiB",
            "1GB",
            "1k",
            "1.5GiB",
            "-1",
            "+1",
            "1e9",
            "0x10",
            "16777216TiB",
            "99999999999999999999",
        ] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
        assert!(nonzero("0KiB").is_err());
    }

    #[test]
    fn sizes_print_as_they_are_written() {
        for (bytes, text) in
            [(0, "0 B"), (1000, "1000 B"), (65536, "64 KiB"), (1 << 30, "1 GiB"), (3 << 29, "1536 MiB")]
        {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}

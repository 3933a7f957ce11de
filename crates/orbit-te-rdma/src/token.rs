//! Tokens of work requests. Rule: a slot that is used again has another generation, so a late CQE of its former WR is told from
//! one of its present WR.

/// What a WR carries as its `wr_id`, and its CQE brings back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WrToken {
    /// The place in the table of WRs in flight.
    pub slot: u32,
    /// How often the place was used before.
    pub generation: u32,
}

impl WrToken {
    /// As a `wr_id`.
    pub const fn to_u64(self) -> u64 {
        ((self.generation as u64) << 32) | self.slot as u64
    }

    /// Of a `wr_id`.
    pub const fn from_u64(wr_id: u64) -> WrToken {
        WrToken { slot: wr_id as u32, generation: (wr_id >> 32) as u32 }
    }

    /// The token of the same slot's next WR.
    pub const fn next(self) -> WrToken {
        WrToken { slot: self.slot, generation: self.generation.wrapping_add(1) }
    }
}

impl From<WrToken> for u64 {
    fn from(token: WrToken) -> u64 {
        token.to_u64()
    }
}

impl From<u64> for WrToken {
    fn from(wr_id: u64) -> WrToken {
        WrToken::from_u64(wr_id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_went() {
        for (slot, generation) in [(0, 0), (1, 0), (0, 1), (u32::MAX, 7), (7, u32::MAX), (u32::MAX, u32::MAX)]
        {
            let token = WrToken { slot, generation };
            assert_eq!(WrToken::from(u64::from(token)), token);
            assert_ne!(token.next(), token);
            assert_eq!(token.next().slot, slot);
        }
    }
}

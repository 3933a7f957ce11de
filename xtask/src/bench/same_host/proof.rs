//! Proof that bytes arrive: fresh ones are put at the source, and looked at where they should be. Rule: whatever has to cross to the
//! target for it goes over TCP, so that no way vouches for itself.

use super::super::plan::{Op, pattern_word};
use super::walk::{BYTES, Piece};
use orbit_te::route::RouteId;
use orbit_te::{Access, Batch, Engine, HostBuffer, Region, Segment};

/// Filled and looked at in one go; pieces of lists divide it.
const CHUNK: usize = 8 << 20;
/// Submissions of more pieces are filled and looked at as wholes of both buffers.
const FEW: usize = 64;

pub(super) struct Proof {
    seed: u64,
    bytes: Vec<u8>,
    /// What crosses to the target or back.
    transit: Region,
}

/// A part of a buffer, and where its bytes come from.
struct Part {
    at: usize,
    source: usize,
    length: usize,
}

impl Proof {
    pub(super) fn new(engine: &Engine) -> anyhow::Result<Proof> {
        let transit = engine.register(HostBuffer::new(CHUNK)?.into_backing(), Access::LOCAL)?;
        Ok(Proof { seed: 0, bytes: vec![0; CHUNK], transit })
    }

    pub(super) fn next_seed(&mut self) -> u64 {
        self.seed = pattern_word(self.seed, 0x5EED);
        self.seed
    }

    /// Puts fresh bytes where those of a submission come from.
    pub(super) fn fill(
        &mut self,
        engine: &Engine,
        region: &Region,
        segment: &Segment,
        op: Op,
        pieces: &[Piece],
        seed: u64,
    ) -> anyhow::Result<()> {
        let whole = [Part { at: 0, source: 0, length: BYTES }];
        let few: Vec<Part> = pieces.iter().take(FEW).map(|piece| source(op, piece)).collect();
        for part in if pieces.len() > FEW { &whole[..] } else { &few } {
            let end = part.at + part.length;
            for at in (part.at..end).step_by(CHUNK) {
                let length = CHUNK.min(end - at);
                let bytes = &mut self.bytes[..length];
                for (word, to) in (at as u64 / 8..).zip(bytes.chunks_exact_mut(8)) {
                    to.copy_from_slice(&pattern_word(word, seed).to_le_bytes());
                }
                match op {
                    Op::Write => region.write_at(at as u64, bytes)?,
                    Op::Read => {
                        self.transit.write_at(0, bytes)?;
                        self.cross(engine, segment, Op::Write, at, length)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether they are where the submission should have put them.
    pub(super) fn holds(
        &mut self,
        engine: &Engine,
        region: &Region,
        segment: &Segment,
        op: Op,
        pieces: &[Piece],
        seed: u64,
    ) -> anyhow::Result<bool> {
        let mut parts = parts(op, pieces);
        while let Some(first) = parts.first() {
            // As many as lie in one chunk of the buffer, which for long ones is a part of one.
            let begin = first.at;
            let end = (begin + CHUNK).min(BYTES);
            let count = parts.iter().take_while(|part| part.at + part.length <= end).count();
            let end = if count == 0 { end } else { parts[count - 1].at + parts[count - 1].length };
            let length = end - begin;
            match op {
                Op::Read => region.read_at(begin as u64, &mut self.bytes[..length])?,
                Op::Write => {
                    self.cross(engine, segment, Op::Read, begin, length)?;
                    self.transit.read_at(0, &mut self.bytes[..length])?;
                }
            }
            for part in &parts[..count.max(1)] {
                let bytes = &self.bytes[part.at - begin..][..part.length.min(length)];
                let words = (part.source as u64 / 8..).zip(bytes.chunks_exact(8));
                if words.into_iter().any(|(word, bytes)| bytes != pattern_word(word, seed).to_le_bytes()) {
                    return Ok(false);
                }
            }
            if count == 0 {
                let part = &mut parts[0];
                (part.at, part.source, part.length) =
                    (part.at + length, part.source + length, part.length - length);
            } else {
                parts.drain(..count);
            }
        }
        Ok(true)
    }

    fn cross(
        &self,
        engine: &Engine,
        segment: &Segment,
        op: Op,
        at: usize,
        length: usize,
    ) -> anyhow::Result<()> {
        let slice = self.transit.slice(0, length as u64)?;
        let mut batch = Batch::with_capacity(1);
        match op {
            Op::Write => batch.write(segment, at as u64, &slice),
            Op::Read => batch.read(segment, at as u64, &slice),
        };
        batch.route(RouteId::TCP);
        engine.submit(batch)?.wait()?;
        Ok(())
    }
}

fn source(op: Op, piece: &Piece) -> Part {
    let at = if op == Op::Write { piece.here } else { piece.there };
    Part { at, source: at, length: piece.length }
}

/// Where the bytes of a submission go, in the order of the buffer.
fn parts(op: Op, pieces: &[Piece]) -> Vec<Part> {
    let part = |piece: &Piece| match op {
        Op::Write => Part { at: piece.there, source: piece.here, length: piece.length },
        Op::Read => Part { at: piece.here, source: piece.there, length: piece.length },
    };
    let mut parts: Vec<Part> = pieces.iter().map(part).collect();
    parts.sort_unstable_by_key(|part| part.at);
    parts
}

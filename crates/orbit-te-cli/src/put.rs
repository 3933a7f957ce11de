//! `orbit-te put`: a file into a segment. Rule: what can't fit is refused before a byte moves.

use crate::console;
use crate::failure::Failure;
use crate::place::Place;
use crate::routing::{Routing, Way};
use crate::stream::{self, Block, PIECE, Stream, Summary};
use clap::Args;
use orbit_te::{Access, Region};
use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Copy a file into a served segment.
///
/// The file goes over in blocks of 16 MiB, a few at a time, in 64 MiB of memory however large it is. At the end one line says
/// how many bytes stand where, their CRC32C and the rate, reading of the file included. When it fails, the segment may hold a part
/// of the file.
#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The file to send; not empty.
    file: PathBuf,
    #[command(flatten)]
    place: Place,
    /// Seconds within which a block of 16 MiB must be in place.
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    #[command(flatten)]
    routing: Routing,
}

impl Put {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.place.check()?;
        let (mut file, length) = open(&self.file)?;
        let engine = stream::engine(self.deadline, &self.routing)?;
        let way = Way { engine: &engine, demand: self.routing.route };
        let (segment, offset) = self.place.open(&engine, Access::REMOTE_WRITE)?;
        let room = segment.len() - offset;
        if length > room {
            return Err(Failure::Usage(format!(
                "`{}` has {length} bytes, but segment `{}` has room for {room} from offset {offset} on (it has {} bytes)",
                self.file.display(),
                segment.name(),
                segment.len()
            )));
        }

        let started = Instant::now();
        let mut stream = Stream::new(&engine, length)?;
        let mut scratch = vec![0u8; PIECE.min(length as usize)];
        let bar = console::bar(length).with_message("put");
        let mut crc = 0;
        while let Some(block) = stream.next_block() {
            if stream.is_full() {
                bar.inc(stream.land()?.map_or(0, |b| b.length));
            }
            crc = load(&mut file, &stream.region, block, &mut scratch, crc)
                .map_err(|why| Failure::local(format_args!("reading `{}`", self.file.display()), why))?;
            stream.launch(block, |slice| way.write(&segment, offset + block.at, slice))?;
        }
        while let Some(block) = stream.land()? {
            bar.inc(block.length);
        }
        bar.finish_and_clear();
        Summary { verb: "put", bytes: length, offset, crc, started, taken: stream.taken }
            .report(&engine, &segment)
    }
}

fn open(path: &Path) -> Result<(File, u64), Failure> {
    let shown = path.display();
    let file = File::open(path).map_err(|e| Failure::local(format_args!("can't open `{shown}`"), e))?;
    let about = file.metadata().map_err(|e| Failure::local(format_args!("`{shown}`"), e))?;
    if !about.is_file() {
        return Err(Failure::Local(format!("`{shown}` is no regular file; put its bytes into one first")));
    }
    if about.len() == 0 {
        return Err(Failure::Local(format!("`{shown}` is empty; there is nothing to put")));
    }
    Ok((file, about.len()))
}

/// Copies a block from the file to its memory; the checksum so far.
fn load(
    file: &mut File,
    region: &Region,
    block: Block,
    scratch: &mut [u8],
    mut crc: u32,
) -> Result<u32, String> {
    let mut done = 0;
    while done < block.length {
        let size = (block.length - done).min(scratch.len() as u64) as usize;
        let piece = &mut scratch[..size];
        file.read_exact(piece).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => "the file was cut short meanwhile".to_string(),
            _ => error.to_string(),
        })?;
        crc = crc32c::crc32c_append(crc, piece);
        region.write_at(block.memory + done, piece).map_err(|e| e.to_string())?;
        done += size as u64;
    }
    Ok(crc)
}

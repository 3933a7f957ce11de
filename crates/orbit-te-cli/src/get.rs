//! `orbit-te get`: bytes of a segment into a file. Rule: the file appears whole or not at all.

use crate::console;
use crate::failure::Failure;
use crate::place::Place;
use crate::routing::{Routing, Way};
use crate::signals::Ending;
use crate::size::{Size, nonzero};
use crate::stream::{self, Block, PIECE, Stream, Summary};
use crate::sys;
use clap::Args;
use orbit_te::{Access, Region};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Copy bytes of a served segment into a file.
///
/// The bytes go over in blocks of 16 MiB, a few at a time, in 64 MiB of memory however many there are. They are written to a
/// temporary file beside FILE that gets its disk blocks first and takes FILE's name at the end, so that a `get` that fails, or is
/// stopped by SIGINT or SIGTERM, leaves nothing and an older FILE as it was. At the end one line says how many bytes came from
/// where, their CRC32C and the rate, writing of the file included (to the system's cache; there is no fsync).
#[derive(Debug, Args)]
pub(crate) struct Get {
    #[command(flatten)]
    place: Place,
    /// The file to write; an existing one is replaced and keeps its permissions.
    file: PathBuf,
    /// How many bytes to fetch. Default: all from the offset to the segment's end.
    #[arg(long, value_name = "SIZE", value_parser = nonzero)]
    bytes: Option<Size>,
    /// Seconds within which a block of 16 MiB must have come.
    #[arg(long, value_name = "SECS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    deadline: u64,
    #[command(flatten)]
    routing: Routing,
}

impl Get {
    pub(crate) fn run(&self) -> Result<(), Failure> {
        self.place.check()?;
        let ending = Ending::block()?;
        let target = Target::choose(&self.file)?;
        let engine = stream::engine(self.deadline, &self.routing)?;
        let way = Way { engine: &engine, demand: self.routing.route };
        let (segment, offset) = self.place.open(&engine, Access::REMOTE_READ)?;
        let there = segment.len() - offset;
        let length = self.bytes.map_or(there, |size| size.0);
        if length > there {
            return Err(Failure::Usage(format!(
                "segment `{}` has {there} bytes from offset {offset} on, fewer than the {length} asked for (it has {} bytes)",
                segment.name(),
                segment.len()
            )));
        }

        let started = Instant::now();
        let mut output = target.create()?;
        ending.remove_and_exit(output.path.clone())?;
        let trouble =
            |e: &dyn std::fmt::Display| Failure::local(format_args!("writing `{}`", self.file.display()), e);
        sys::allocate(&output.file, length).map_err(|e| trouble(&std::io::Error::from(e)))?;
        let mut stream = Stream::new(&engine, length)?;
        let mut scratch = vec![0u8; PIECE.min(length as usize)];
        let bar = console::bar(length).with_message("get");
        let mut crc = 0;
        loop {
            while let (false, Some(block)) = (stream.is_full(), stream.next_block()) {
                stream.launch(block, |slice| way.read(&segment, offset + block.at, slice))?;
            }
            let Some(block) = stream.land()? else { break };
            crc =
                store(&stream.region, block, &mut output.file, &mut scratch, crc).map_err(|e| trouble(&e))?;
            bar.inc(block.length);
        }
        output.finish().map_err(|e| trouble(&e))?;
        bar.finish_and_clear();
        Summary { verb: "got", bytes: length, offset, crc, started, taken: stream.taken }
            .report(&engine, &segment)
    }
}

/// Copies a block from its memory to the end of the file; the checksum so far.
fn store(
    region: &Region,
    block: Block,
    file: &mut File,
    scratch: &mut [u8],
    mut crc: u32,
) -> std::io::Result<u32> {
    let mut done = 0;
    while done < block.length {
        let size = (block.length - done).min(scratch.len() as u64) as usize;
        let piece = &mut scratch[..size];
        region.read_at(block.memory + done, piece).map_err(std::io::Error::other)?;
        crc = crc32c::crc32c_append(crc, piece);
        file.write_all(piece)?;
        done += size as u64;
    }
    Ok(crc)
}

/// Where the bytes will stand.
struct Target {
    path: PathBuf,
    permissions: Option<std::fs::Permissions>,
}

impl Target {
    /// Follows links, and refuses what a file can't replace.
    fn choose(file: &Path) -> Result<Target, Failure> {
        let shown = file.display();
        match std::fs::metadata(file) {
            Ok(about) if !about.is_file() => {
                Err(Failure::Local(format!("`{shown}` exists and is no regular file; choose another name")))
            }
            Ok(about) => {
                let path = file.canonicalize().map_err(|e| Failure::local(format_args!("`{shown}`"), e))?;
                Ok(Target { path, permissions: Some(about.permissions()) })
            }
            Err(_) if file.file_name().is_none() => {
                Err(Failure::Local(format!("`{shown}` is no name for a file")))
            }
            Err(_) => Ok(Target { path: file.to_path_buf(), permissions: None }),
        }
    }

    /// Makes the temporary file beside it.
    fn create(self) -> Result<Output, Failure> {
        let name =
            self.path.file_name().unwrap_or_default().to_string_lossy().chars().take(60).collect::<String>();
        let path = self.path.with_file_name(format!(".{name}.orbit-te-{}", std::process::id()));
        let failed = |e| Failure::local(format_args!("can't write a temporary file `{}`", path.display()), e);
        let file = OpenOptions::new().write(true).create_new(true).open(&path).map_err(failed)?;
        let output = Output { file, path, target: self.path, finished: false };
        if let Some(permissions) = self.permissions {
            let shown = output.path.display();
            output
                .file
                .set_permissions(permissions)
                .map_err(|e| Failure::local(format_args!("`{shown}`"), e))?;
        }
        Ok(output)
    }
}

/// The temporary file; gone with this value unless it was finished.
struct Output {
    file: File,
    path: PathBuf,
    target: PathBuf,
    finished: bool,
}

impl Output {
    fn finish(&mut self) -> std::io::Result<()> {
        self.file.flush()?;
        std::fs::rename(&self.path, &self.target)?;
        self.finished = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.finished {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

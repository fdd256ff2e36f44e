//! A cable that can be pulled: another network namespace, joined to ours by a veth pair.
//!
//! The namespace has no name: it lasts as long as this process has it open, and the veth pair with
//! it. If this process is killed, orphaned sockets may keep both for some minutes more; the next
//! cable does not wait for that.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a link may take to come up.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many this process has laid.
static LAID: AtomicU32 = AtomicU32::new(0);

/// The cable, plugged in. Dropping it removes both ends.
#[derive(Debug)]
pub struct Cable {
    namespace: File,
    near_end: String,
    far_end: String,
    address: String,
}

impl Cable {
    /// Lays it; a process may have two at a time. Only root may, with `ip` on its PATH.
    pub fn lay() -> io::Result<Cable> {
        remove_those_of_the_dead()?;
        let namespace = new_namespace()?;
        let number = std::process::id();
        let index = LAID.fetch_add(1, Ordering::Relaxed);
        // Out of 198.18.0.0/15, which is for tests: twice four addresses for each process that may
        // run this.
        let base = (number & 63) * 4;
        let net = format!("198.{}.{}", 18 + index % 2, number >> 6 & 255);
        let (address, far_address) =
            (format!("{net}.{}", base + 1), format!("{net}.{}/30", base + 2));
        let (near_end, far_end) = (format!("ml{number}a{index}"), format!("ml{number}b{index}"));
        let place = format!("/proc/{number}/fd/{}", namespace.as_raw_fd());
        ip(None, &["link", "add", &near_end, "type", "veth", "peer", "name", &far_end])?;
        let cable = Cable { namespace, near_end, far_end, address };
        let Cable { near_end, far_end, .. } = &cable;
        ip(None, &["link", "set", far_end, "netns", &place])?;
        ip(None, &["address", "add", &format!("{}/30", cable.address), "dev", near_end])?;
        ip(None, &["link", "set", near_end, "up"])?;
        let there = Some(cable.namespace());
        ip(there, &["address", "add", &far_address, "dev", far_end])?;
        ip(there, &["link", "set", "lo", "up"])?;
        cable.plug_in()?;
        carries(None, near_end)?;
        carries(there, far_end)?;
        Ok(cable)
    }

    /// The near end's address, at which both sides reach a server.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// For [`enter`].
    pub fn namespace(&self) -> RawFd {
        self.namespace.as_raw_fd()
    }

    /// From now on nothing passes, and neither end notices.
    pub fn pull(&self) -> io::Result<()> {
        ip(Some(self.namespace()), &["link", "set", &self.far_end, "down"])
    }

    /// Ends [`Cable::pull`].
    pub fn plug_in(&self) -> io::Result<()> {
        ip(Some(self.namespace()), &["link", "set", &self.far_end, "up"])
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        // Both ends go. A failure could not be mended.
        let _ = ip(None, &["link", "del", &self.near_end]);
    }
}

/// Has the command run in a network namespace.
pub fn enter(command: &mut Command, namespace: RawFd) {
    // SAFETY: between fork and exec only setns runs, which is one system call.
    unsafe {
        command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        });
    }
}

/// The network namespace that the calling thread is in.
pub(crate) fn namespace_of_this_thread() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

/// Moves the calling thread into a network namespace, unless it is there already.
pub(crate) fn move_to(namespace: &File) -> io::Result<()> {
    let here = namespace_of_this_thread()?.metadata()?;
    let there = namespace.metadata()?;
    if (here.dev(), here.ino()) == (there.dev(), there.ino()) {
        return Ok(());
    }
    // SAFETY: the descriptor is open, and the call concerns this thread only.
    match unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Removes the cables of processes that are no more.
fn remove_those_of_the_dead() -> io::Result<()> {
    for link in std::fs::read_dir("/sys/class/net")? {
        let name = link?.file_name();
        let Some(name) = name.to_str() else { continue };
        let number = name.strip_prefix("ml").and_then(|rest| rest.split_once('a'));
        let number: Option<u32> = number.and_then(|(number, _)| number.parse().ok());
        if number.is_some_and(|number| !Path::new(&format!("/proc/{number}")).exists()) {
            ip(None, &["link", "del", name])?;
        }
    }
    Ok(())
}

/// Made by a thread that moves into it and ends: our own thread stays where it is.
pub(crate) fn new_namespace() -> io::Result<File> {
    let maker = thread::spawn(|| {
        // SAFETY: it concerns this thread only, which ends here.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            return Err(io::Error::last_os_error());
        }
        namespace_of_this_thread()
    });
    maker.join().map_err(|_| io::Error::other("the thread that makes a namespace panicked"))?
}

fn ip(namespace: Option<RawFd>, words: &[&str]) -> io::Result<()> {
    run(namespace, "ip", words).map(drop)
}

/// Waits until what is sent through a link arrives: after it was set up, the kernel drops packets
/// until a worker thread has seen to it.
pub(crate) fn carries(namespace: Option<RawFd>, link: &str) -> io::Result<()> {
    let began = Instant::now();
    while !run(namespace, "ip", &["link", "show", "dev", link])?.contains("state UP") {
        if began.elapsed() > PATIENCE {
            return Err(io::Error::other(format!("the link {link} does not come up")));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Runs a program in a network namespace, and returns what it printed; fails with what it said if
/// it fails.
pub(crate) fn run(namespace: Option<RawFd>, program: &str, words: &[&str]) -> io::Result<String> {
    let mut command = Command::new(program);
    command.args(words);
    if let Some(namespace) = namespace {
        enter(&mut command, namespace);
    }
    let done = command.output()?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&done.stderr);
    Err(io::Error::other(format!("{program} {}: {}", words.join(" "), said.trim())))
}

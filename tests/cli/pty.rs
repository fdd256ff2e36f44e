//! A terminal of one's own, with a shell in it that has job control.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Instant;

use crate::tool::PATIENCE;

/// A program on a terminal. It is killed when this is dropped.
pub(crate) struct Pty {
    keys: File,
    screen: Receiver<Vec<u8>>,
    seen: String,
    child: Child,
    is_gone: Arc<AtomicBool>,
}

impl Pty {
    /// Starts the program as the leader of a session whose terminal this is.
    pub(crate) fn start(mut command: Command) -> Pty {
        let (mut controller, mut terminal) = (-1, -1);
        // SAFETY: both are valid places for descriptors; the other arguments may be null.
        let opened = unsafe {
            libc::openpty(
                &mut controller,
                &mut terminal,
                ptr::null_mut(),
                ptr::null_mut(),
                ptr::null_mut(),
            )
        };
        assert_eq!(opened, 0, "openpty: {}", std::io::Error::last_os_error());
        // SAFETY: the descriptors are new, and owned by nothing else.
        let (controller, terminal) = unsafe {
            (File::from(OwnedFd::from_raw_fd(controller)), OwnedFd::from_raw_fd(terminal))
        };
        // SAFETY: the call takes plain numbers; no other child is to hold the controller open.
        unsafe { libc::fcntl(controller.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
        command.stdin(Stdio::from(terminal.try_clone().unwrap()));
        command.stdout(Stdio::from(terminal.try_clone().unwrap())).stderr(Stdio::from(terminal));
        // SAFETY: setsid and ioctl are async-signal-safe, and nothing is allocated.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = command.spawn().unwrap();
        drop(command);
        let mut reader = controller.try_clone().unwrap();
        let (pieces, screen) = mpsc::channel();
        let is_gone = Arc::new(AtomicBool::new(false));
        let gone = Arc::clone(&is_gone);
        thread::spawn(move || {
            let mut piece = [0; 4096];
            while !gone.load(Ordering::Relaxed) {
                let mut there =
                    libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: one valid pollfd is given.
                if unsafe { libc::poll(&mut there, 1, 20) } == 0 {
                    continue;
                }
                match reader.read(&mut piece) {
                    Ok(length @ 1..) if pieces.send(piece[..length].to_vec()).is_ok() => {}
                    _ => break,
                }
            }
        });
        Pty { keys: controller, screen, seen: String::new(), child, is_gone }
    }

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until this is on the screen, behind what was waited for before; what came up to it.
    #[track_caller]
    pub(crate) fn until(&mut self, text: &str) -> String {
        let began = Instant::now();
        loop {
            if let Some(place) = self.seen.find(text) {
                let rest = self.seen.split_off(place + text.len());
                return std::mem::replace(&mut self.seen, rest);
            }
            let left = PATIENCE.saturating_sub(began.elapsed());
            let piece = self.screen.recv_timeout(left);
            match piece {
                Ok(piece) => self.seen += &String::from_utf8_lossy(&piece),
                Err(_) => panic!("{text:?} did not come; there is {:?}", self.seen),
            }
        }
    }

    /// The process behind a line `text PID`.
    pub(crate) fn pid_after(&mut self, text: &str) -> i32 {
        self.until(text);
        self.until("\n").trim().parse().unwrap()
    }

    /// Takes the terminal away, as a connection that breaks or a window that is closed.
    pub(crate) fn hang_up(&mut self) {
        self.is_gone.store(true, Ordering::Relaxed);
        // The other end stands for nothing; the last descriptor of the terminal is closed when its
        // reader has ended.
        self.keys = File::open("/dev/null").unwrap();
        while self.screen.recv().is_ok() {}
    }

    /// Waits for the end of the program: with which status.
    pub(crate) fn ends(mut self) -> Option<i32> {
        crate::tool::eventually("the program on the terminal ends", || {
            self.child.try_wait().unwrap()
        })
        .code()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

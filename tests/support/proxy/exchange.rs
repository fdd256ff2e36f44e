//! Carrying bytes between one client and the server.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::{Fault, Shared};
use crate::wire::{Burst, Connections, Requests, lock};

/// Asked after a burst whose whole answer is wanted.
const END_MARK: &[u8] = b"version\r\n";
const END_MARK_REPLY: &[u8] = b"VERSION ";

/// Carries one client's bytes to the server and back, and does to them what the rules say.
pub(super) fn serve(shared: &Shared, client: &TcpStream, open: &Connections) {
    let target = {
        let mut state = lock(&shared.state);
        state.connections += 1;
        if state.refuse {
            return;
        }
        (!state.black_hole).then_some(state.target)
    };
    let Some(target) = target else {
        shared.count_hit();
        let mut lost = Requests::new(client);
        while lost.next().is_some() {}
        return;
    };
    let Ok(server) = TcpStream::connect_timeout(&target, Duration::from_secs(2)) else { return };
    // Without it only speed is lost.
    let _ = server.set_nodelay(true);
    let Some(_registered) = open.register(&server) else { return };
    // Refused while we connected: too late to be closed with the others.
    if lock(&shared.state).refuse {
        return;
    }
    let exchange = Exchange {
        shared,
        client,
        server: &server,
        open,
        silent: AtomicBool::new(false),
        server_spoke_last: AtomicBool::new(true),
        reply_fault: Mutex::new(None),
    };
    thread::scope(|directions| {
        directions.spawn(|| exchange.carry_replies());
        exchange.carry_requests();
    });
}

/// One client's connection and the one to the server that belongs to it.
struct Exchange<'a> {
    shared: &'a Shared,
    client: &'a TcpStream,
    server: &'a TcpStream,
    open: &'a Connections,
    /// Whatever comes is thrown away, from both sides.
    silent: AtomicBool,
    server_spoke_last: AtomicBool,
    /// What is to happen to the answer under way, which then ends with that to [`END_MARK`].
    reply_fault: Mutex<Option<Fault>>,
}

impl Exchange<'_> {
    fn carry_requests(&self) {
        let mut requests = Requests::new(self.client);
        while let Some(burst) = requests.next() {
            if self.server_spoke_last.swap(false, Ordering::SeqCst) {
                lock(&self.shared.state).round_trips += 1;
            }
            if self.is_silent() {
                continue;
            }
            let carried = match self.shared.fault_for(&burst) {
                None => send(self.server, &burst.bytes),
                Some(fault) => self.carry_with_fault(&burst, fault),
            };
            if carried.is_err() {
                self.cut();
            }
        }
        // Not a full close: the server still does what it was sent, and closes when it reads this
        // end.
        let _ = self.server.shutdown(Shutdown::Write);
    }

    // A hit counts before the client can notice the fault, and not before silence has set in.

    fn carry_with_fault(&self, burst: &Burst, fault: Fault) -> io::Result<()> {
        match fault {
            Fault::DropRequest => {
                self.fall_silent();
                self.shared.count_hit();
                Ok(())
            }
            Fault::DelayRest(length, time) => {
                let (first, rest) = burst.bytes.split_at(length.min(burst.bytes.len()));
                send(self.server, first)?;
                self.shared.count_hit();
                self.open.pause(time);
                send(self.server, rest)
            }
            Fault::HoldRest(length) => {
                let (first, rest) = burst.bytes.split_at(length.min(burst.bytes.len()));
                send(self.server, first)?;
                self.shared.count_hit();
                let is_held = || lock(&self.shared.state).has_rules();
                while is_held() && self.open.pause(Duration::from_millis(5)) {}
                send(self.server, rest)
            }
            Fault::CutRequestAfter(length) => {
                // The reply to a whole request must not come before the cut.
                self.fall_silent();
                self.shared.count_hit();
                let sent = send(self.server, &burst.bytes[..length.min(burst.bytes.len())]);
                self.cut();
                sent
            }
            Fault::Trickle(pause) => {
                *lock(&self.reply_fault) = Some(fault);
                self.trickle(self.server, &burst.bytes, pause)?;
                send(self.server, END_MARK)
            }
            reply_fault => {
                *lock(&self.reply_fault) = Some(reply_fault);
                send(self.server, &[&burst.bytes, END_MARK].concat())
            }
        }
    }

    fn carry_replies(&self) {
        let mut server = self.server;
        let mut piece = vec![0; 64 << 10];
        let mut answer = Vec::new();
        while let Ok(length @ 1..) = server.read(&mut piece) {
            if self.is_silent() {
                continue;
            }
            answer.extend_from_slice(&piece[..length]);
            let mut reply_fault = lock(&self.reply_fault);
            if reply_fault.is_some() && !strip_end_mark(&mut answer) {
                continue;
            }
            let fault = reply_fault.take();
            drop(reply_fault);
            // Before a byte leaves, or the client could begin its next exchange unseen.
            self.server_spoke_last.store(true, Ordering::SeqCst);
            let carried = match fault {
                None => send(self.client, &answer),
                Some(fault) => self.reply_with_fault(&answer, fault),
            };
            if carried.is_err() {
                break;
            }
            answer.clear();
        }
        // A client that is cut off in silence does not notice the server's end either.
        if !self.is_silent() {
            self.cut();
        }
    }

    fn reply_with_fault(&self, answer: &[u8], fault: Fault) -> io::Result<()> {
        if fault == Fault::SwallowReply {
            self.fall_silent();
        }
        self.shared.count_hit();
        match fault {
            Fault::SwallowReply => Ok(()),
            Fault::DelayReply(time) => {
                self.open.pause(time);
                send(self.client, answer)
            }
            Fault::GarbleReply(bytes) => send(self.client, &bytes),
            Fault::RepeatReply(length) => {
                let again = &answer[answer.len().saturating_sub(length)..];
                send(self.client, &[answer, again].concat())
            }
            Fault::Trickle(pause) => self.trickle(self.client, answer, pause),
            Fault::CutReplyAfter(length) => {
                let sent = send(self.client, &answer[..length.min(answer.len())]);
                self.cut();
                sent
            }
            // All but the first have acted on the request and do not come here.
            Fault::CutAfterRequest
            | Fault::DropRequest
            | Fault::CutRequestAfter(_)
            | Fault::DelayRest(..)
            | Fault::HoldRest(_) => {
                self.cut();
                Ok(())
            }
        }
    }

    fn trickle(&self, to: &TcpStream, bytes: &[u8], pause: Duration) -> io::Result<()> {
        bytes.iter().try_for_each(|&byte| {
            self.open.pause(pause);
            send(to, &[byte])
        })
    }

    /// Whether it was silent before.
    fn fall_silent(&self) -> bool {
        self.silent.swap(true, Ordering::SeqCst)
    }

    fn is_silent(&self) -> bool {
        if lock(&self.shared.state).black_hole && !self.fall_silent() {
            self.shared.count_hit();
        }
        self.silent.load(Ordering::SeqCst)
    }

    fn cut(&self) {
        for side in [self.client, self.server] {
            // It fails when the other side has closed already.
            let _ = side.shutdown(Shutdown::Both);
        }
    }
}

fn send(mut to: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)
}

/// Takes the reply to [`END_MARK`] off the end of an answer; false while it is not there yet.
fn strip_end_mark(answer: &mut Vec<u8>) -> bool {
    let Some(lines) = answer.strip_suffix(b"\r\n") else { return false };
    let last = lines.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let found = lines[last..].starts_with(END_MARK_REPLY);
    if found {
        answer.truncate(last);
    }
    found
}

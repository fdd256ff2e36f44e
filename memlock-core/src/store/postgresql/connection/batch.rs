//! A batch: packets of requests, and what their answers mean.

use super::{Connection, Packet, UNCOMPARED};
use crate::error::{Error, ErrorKind};
use crate::store::postgresql::errors;
use crate::store::postgresql::request::{self, ANOTHER_LIFE, Answer, Request};
use crate::store::postgresql::wire::{Complaint, nonsense};
use crate::store::remote::Patience;
use crate::store::{Failure, Op, Replies, Reply};

/// A packet has no more operations than this, and no more bytes of values, about: its replies come in
/// time.
const MOST_OPS: usize = 256;
const MOST_BYTES: usize = 8 * 1024 * 1024;
/// How often a transaction that fell victim to others is tried again.
const TRIES: usize = 20;

/// What is known of a batch so far.
#[derive(Debug, Default)]
struct Progress {
    answers: Vec<Answer>,
    /// Whether an operation has changed something.
    has_changed: bool,
    /// Whether the disk may not have that yet, and has to.
    is_unsynced: bool,
}

/// The first request of a packet that was not carried out.
struct Refused {
    /// What the server says; `None`: the life is another one.
    said: Option<Complaint>,
    /// Whether an operation behind it has changed something.
    has_changes_behind: bool,
}

impl Connection {
    /// Sends as many of these requests as one packet has. `None` if there are none.
    pub(super) fn send_packet(
        &mut self,
        requests: &[Request<'_>],
    ) -> std::result::Result<Option<Packet>, Failure> {
        let mut bytes = 0;
        let fits = |request: &&Request<'_>| {
            bytes += request.size();
            bytes <= MOST_BYTES
        };
        let count = requests.iter().take(MOST_OPS).take_while(fits).count().max(1);
        let Some((part, _)) = requests.split_at_checked(count) else { return Ok(None) };
        let sent = self.wire.socket.clock().now();
        let compares = sent.since(self.compared) >= UNCOMPARED;
        self.send_requests(part, compares)?;
        Ok(Some(Packet { count, sent, compares }))
    }

    pub(super) fn receive_batch(&mut self, ops: &[Op<'_>], packet: Option<Packet>) -> Replies {
        let epoch = self.introduction.life.epoch();
        let requests = self.requests(ops);
        let mut progress = Progress::default();
        let ran = self.receive_packets(&requests, packet, &mut progress);
        let synced = if progress.is_unsynced && self.is_ready { self.sync() } else { Ok(()) };
        let Progress { answers, has_changed, .. } = progress;
        ran.and(synced).map_err(|failure| failure.behind(has_changed))?;
        self.sweeps.add(requests.iter().filter(|request| request.changes()).count());
        let mut answers = answers.into_iter();
        let mut reply = |op: &Op<'_>| {
            if !op.is_of(epoch) {
                return Ok(Reply::VersionMismatch);
            }
            let unread = || Failure { error: nonsense(), sent: true };
            request::decode(op, answers.next().ok_or_else(unread)?, epoch)
        };
        let replies: std::result::Result<Vec<_>, Failure> = ops.iter().map(&mut reply).collect();
        replies.map_err(|failure| failure.behind(has_changed))
    }

    /// Receives the answers to a packet that was sent, and to further packets for the rest.
    fn receive_packets(
        &mut self,
        requests: &[Request<'_>],
        mut packet: Option<Packet>,
        progress: &mut Progress,
    ) -> std::result::Result<(), Failure> {
        while let Some(sent) = packet {
            let end = progress.answers.len() + sent.count;
            self.receive_packet(&requests[..end], &sent, progress)?;
            packet = self.send_packet(&requests[end..])?;
        }
        Ok(())
    }

    /// Receives the answers to the last of these requests. What the server refused for the moment is
    /// sent again with all that is behind it, unless something behind it has changed.
    fn receive_packet(
        &mut self,
        requests: &[Request<'_>],
        packet: &Packet,
        progress: &mut Progress,
    ) -> std::result::Result<(), Failure> {
        for tries in 1.. {
            let rest = &requests[progress.answers.len()..];
            let Some(refused) = self.receive_answers(rest, progress)? else { break };
            let Refused { said, has_changes_behind } = refused;
            let Some(said) = said else { return Err(another_life()) };
            let is_direct = self.introduction.is_direct;
            let is_elsewhere = is_direct && errors::is_of_another_session(&said.code);
            if is_elsewhere {
                (self.introduction.is_direct, self.is_prepared) = (false, false);
            }
            let is_victim = errors::is_victim(&said.code) && tries < TRIES;
            if has_changes_behind || !(is_elsewhere || is_victim) {
                return Err(self.refusal(&said));
            }
            self.send_requests(&requests[progress.answers.len()..], packet.compares)?;
        }
        if packet.compares {
            self.compared = packet.sent;
        }
        Ok(())
    }

    fn refusal(&mut self, said: &Complaint) -> Failure {
        self.was_refused = errors::is_of_the_request(&said.code);
        let error = errors::of(said, &self.settings.schema, &self.settings.user);
        Failure { error, sent: false }
    }

    /// Receives the answers to these requests, up to the first one that was not carried out, which is
    /// returned. The answers behind it are received, too: each request is a transaction of its own.
    fn receive_answers(
        &mut self,
        requests: &[Request<'_>],
        progress: &mut Progress,
    ) -> std::result::Result<Option<Refused>, Failure> {
        let mut patience = Patience::default();
        let mut refused: Option<Refused> = None;
        let last_change = requests.iter().rposition(Request::changes);
        for place in 0..requests.len() {
            let answer = match (self.receive_answer(&mut patience), &refused) {
                (Ok(Ok(answer)), _) if answer.code != ANOTHER_LIFE => answer,
                (Ok(answer), _) => {
                    let said = answer.err();
                    refused.get_or_insert(Refused { said, has_changes_behind: false });
                    continue;
                }
                // Where a stranger has locked many rows, the rest of the packet takes too long.
                (Err(_), Some(Refused { said: Some(said), .. })) => {
                    return Err(Failure { sent: true, ..self.refusal(said) });
                }
                (Err(failure), _) => return Err(failure),
            };
            let changed = answer.changed();
            progress.has_changed |= changed;
            if changed && self.settings.schema.is_durable {
                // The commit of the last change waits for the disk, and with it for those before.
                progress.is_unsynced = Some(place) != last_change;
            }
            match &mut refused {
                None => progress.answers.push(answer),
                Some(refused) => refused.has_changes_behind |= changed,
            }
        }
        Ok(refused)
    }
}

fn another_life() -> Failure {
    let text = "The server has lost its locks meanwhile, in a crash or a failover, or an older copy was restored.";
    Failure::unsent(Error::new(ErrorKind::Unreachable, text))
}

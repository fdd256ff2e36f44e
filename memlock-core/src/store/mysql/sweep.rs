//! Removing the rows of items that ended some time ago.
//!
//! An `Add` uses the row of its key again; rows of keys that are not used again are removed by sweeps,
//! each of which examines the rows that follow the last one examined, and then begins anew. It reads
//! them without locking, and deletes by key what was over. Each request of a sweep is sent behind
//! the reply to a batch, or before the connection is closed.

use super::packets::{Answer, Row, Wire, out_of_step};
use super::schema::{Engine, TABLE};
use super::statements::{Hex, NOW, parse};
use crate::clock::Clock;
use crate::error::Result;
use crate::store::remote::{EXAMINED, Patience, SweepCounter};
use crate::store::{Op, Reply};

/// When a connection sweeps next, and where.
#[derive(Debug)]
pub(super) struct Sweeper {
    engine: Engine,
    counter: SweepCounter,
    /// Behind which key the next sweep begins; `None`: behind the key that is stored last then.
    next: Option<Vec<u8>>,
    request: Option<Request>,
}

/// A request of a sweep: the next one to be sent, or the one whose reply is due.
#[derive(Debug)]
enum Request {
    /// Examine so many rows behind this key.
    Examine(Vec<u8>, usize),
    Delete(String),
}

impl Sweeper {
    pub(super) fn new(clock: &dyn Clock, engine: Engine) -> Sweeper {
        let mut random = [0];
        // Where keys rise with time, the oldest are at the beginning; elsewhere the first rows may be
        // those that stay. Most processes of the command sweep once at most.
        let begins_anew = clock.random(&mut random).is_ok_and(|()| random[0] & 1 == 0);
        let next = begins_anew.then(Vec::new);
        Sweeper { engine, counter: SweepCounter::new(clock), next, request: None }
    }

    /// Counts what was stored, and begins a sweep when it is due.
    pub(super) fn note(&mut self, ops: &[Op<'_>], replies: &[Reply]) {
        let stored = |(op, reply): &(&Op<'_>, &Reply)| {
            matches!(op, Op::Add { .. }) && matches!(reply, Reply::Stored(_) | Reply::Written)
        };
        self.counter.add(ops.iter().zip(replies).filter(stored).count());
        if self.request.is_some() {
            return;
        }
        let Some(rows) = self.counter.take() else { return };
        let last = || {
            let last = ops.iter().zip(replies).rfind(stored);
            last.map_or_else(Vec::new, |(op, _)| op.key().as_str().as_bytes().to_vec())
        };
        self.request = Some(match self.engine {
            Engine::InnoDb => Request::Examine(self.next.take().unwrap_or_else(last), rows),
            // Its rows have no order.
            Engine::Memory => Request::Delete(deletion_of_any(self.engine, rows)),
        });
    }

    /// Sends the next request of the sweep, if there is one.
    pub(super) fn send(&mut self, wire: &mut Wire) -> Result<()> {
        let sent = match &self.request {
            None => return Ok(()),
            Some(Request::Examine(from, rows)) => {
                wire.query(&examination(from, *rows, self.engine))
            }
            Some(Request::Delete(statement)) => wire.query(statement),
        };
        sent.map_err(|failure| failure.error)?;
        wire.socket.defer_reply();
        Ok(())
    }

    /// Reads the reply to it.
    pub(super) fn receive(&mut self, wire: &mut Wire) -> Result<()> {
        match self.request.take() {
            None => {}
            Some(Request::Delete(_)) => read(wire, 1).map(drop)?,
            Some(Request::Examine(from, rows)) => {
                let mut answers = read(wire, 2)?.into_iter();
                if let (Some(Answer::Rows(end)), Some(Answer::Rows(found))) =
                    (answers.next(), answers.next())
                {
                    self.next = Some(last_examined(end, rows)?.unwrap_or_default());
                    let dead = found.into_iter().filter_map(|row| row.into_iter().next()?);
                    self.request = deletion(dead, self.engine).map(Request::Delete);
                } else {
                    self.next = Some(from);
                }
            }
        }
        wire.socket.end_deferral()
    }
}

/// Selects the rows that are not needed any more. A release sets the end to 0; the number tells when the
/// row was changed. Its next number, and fence, would be a lower one if the clock were set back by more
/// than a row remains. A MEMORY table has no room for rows that are not needed now.
fn over(engine: Engine) -> String {
    let last = match engine {
        Engine::InnoDb => "GREATEST(expires,number)",
        Engine::Memory => "expires",
    };
    format!("{last}<={NOW}-{}", engine.remains())
}

/// Asks for the last one of the rows that follow `from`, and which of them are not needed.
fn examination(from: &[u8], rows: usize, engine: Engine) -> String {
    let over = over(engine);
    let part = format!(
        "(SELECT name,expires,number FROM {TABLE} WHERE name>{} ORDER BY name LIMIT {rows}) AS part",
        Hex(from)
    );
    format!("SELECT MAX(name),COUNT(*) FROM {part};SELECT name FROM {part} WHERE {over}")
}

/// The last key that was examined; `None` if no row follows it.
fn last_examined(end: Vec<Row>, rows: usize) -> Result<Option<Vec<u8>>> {
    let row = end.into_iter().next().ok_or_else(out_of_step)?;
    let [last, count] = <[Option<Vec<u8>>; 2]>::try_from(row).map_err(|_| out_of_step())?;
    let is_full = parse(count).is_some_and(|count| count >= rows as u64);
    Ok(last.filter(|_| is_full))
}

/// Deletes these rows, if they are still not needed.
fn deletion(names: impl Iterator<Item = Vec<u8>>, engine: Engine) -> Option<String> {
    let names: Vec<String> = names.map(|name| Hex(&name).to_string()).collect();
    let (names, over) = (names.join(","), over(engine));
    (!names.is_empty()).then(|| format!("DELETE FROM {TABLE} WHERE name IN ({names}) AND {over}"))
}

/// Deletes so many rows that are not needed.
fn deletion_of_any(engine: Engine, rows: usize) -> String {
    format!("DELETE FROM {TABLE} WHERE {} LIMIT {rows}", over(engine))
}

/// Removes rows that are over from a table that is full.
pub(super) fn make_room(wire: &mut Wire, engine: Engine) -> Result<()> {
    wire.query(&deletion_of_any(engine, EXAMINED)).map_err(|failure| failure.error)?;
    read(wire, 1).map(drop)
}

/// Reads the replies to statements, up to the first refusal.
fn read(wire: &mut Wire, count: usize) -> Result<Vec<Answer>> {
    let mut patience = Patience::default();
    let mut answers = Vec::new();
    for left in (0..count).rev() {
        match wire.answer(left == 0, &mut patience)? {
            Answer::Refused(_) => break,
            answer => answers.push(answer),
        }
    }
    Ok(answers)
}

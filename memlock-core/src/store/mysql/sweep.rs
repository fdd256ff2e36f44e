//! Removing the rows of items that ended some time ago.
//!
//! An `Add` uses the row of its key again; rows of keys that are not used again are removed by sweeps,
//! each of which examines the rows that follow the last one examined, and then begins anew. It reads
//! them without locking, and deletes by key what was over.

use super::packets::{Answer, Row, Wire, out_of_step};
use super::schema::{Engine, TABLE};
use super::statements::{Hex, NOW, parse};
use crate::clock::Clock;
use crate::error::Result;
use crate::store::remote::Patience;
use crate::store::{Op, Reply};

/// A connection sweeps when it has stored so many items. The first time is left to chance, since most
/// processes of the command store few.
const EVERY: u32 = 256;
/// A sweep examines several times as many rows as were stored, so that it catches up.
pub(super) const EXAMINED: usize = 1024;

/// When a connection sweeps next, and where.
#[derive(Debug)]
pub(super) struct Sweeper {
    stored: u32,
    /// The last key that was examined; at first, the last one that was stored.
    last: Option<Vec<u8>>,
}

impl Sweeper {
    pub(super) fn new(clock: &dyn Clock) -> Sweeper {
        let mut random = [0];
        // Without chance the first sweep is as late as it can be.
        let stored = clock.random(&mut random).map_or(0, |()| u32::from(random[0]));
        Sweeper { stored, last: None }
    }

    /// Counts what was stored. Returns whether a sweep is due.
    pub(super) fn note(&mut self, ops: &[Op<'_>], replies: &[Reply]) -> bool {
        let stored = |(op, reply): &(&Op<'_>, &Reply)| {
            matches!(op, Op::Add { .. }) && matches!(reply, Reply::Stored(_) | Reply::Written)
        };
        for (op, _) in ops.iter().zip(replies).filter(stored) {
            self.stored += 1;
            if self.stored >= EVERY && self.last.is_none() {
                self.last = Some(op.key().as_str().as_bytes().to_vec());
            }
        }
        self.stored >= EVERY
    }

    /// Examines the next rows.
    pub(super) fn sweep(&mut self, wire: &mut Wire, engine: Engine) -> Result<()> {
        self.stored = 0;
        if engine == Engine::Memory {
            // Its rows have no order.
            return make_room(wire, engine, EXAMINED);
        }
        let from = self.last.take().unwrap_or_default();
        let last = examine(wire, engine, &from)?;
        self.last = match last {
            // Where keys rise with time, the oldest are at the beginning.
            None if !from.is_empty() => examine(wire, engine, b"")?,
            last => last,
        };
        self.last.get_or_insert_default();
        Ok(())
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

/// Examines the rows that follow `from`. Returns the last key; `None` if there are no more.
fn examine(wire: &mut Wire, engine: Engine, from: &[u8]) -> Result<Option<Vec<u8>>> {
    let over = over(engine);
    let part = format!(
        "(SELECT name,expires,number FROM {TABLE} WHERE name>{} ORDER BY name LIMIT {EXAMINED}) AS part",
        Hex(from)
    );
    let statements =
        format!("SELECT MAX(name),COUNT(*) FROM {part};SELECT name FROM {part} WHERE {over}");
    let mut answers = ask(wire, &statements, 2)?.into_iter();
    let (Some(Answer::Rows(end)), Some(Answer::Rows(found))) = (answers.next(), answers.next())
    else {
        return Ok(None);
    };
    let names = |rows: Vec<Row>| rows.into_iter().filter_map(|row| row.into_iter().next()?);
    let dead: Vec<String> = names(found).map(|name| Hex(&name).to_string()).collect();
    if !dead.is_empty() {
        let names = dead.join(",");
        ask(wire, &format!("DELETE FROM {TABLE} WHERE name IN ({names}) AND {over}"), 1)?;
    }
    let row = end.into_iter().next().ok_or_else(out_of_step)?;
    let [last, count] = <[Option<Vec<u8>>; 2]>::try_from(row).map_err(|_| out_of_step())?;
    let is_full = parse(count).is_some_and(|count| count >= EXAMINED as u64);
    Ok(last.filter(|_| is_full))
}

/// Removes up to so many rows that are over.
pub(super) fn make_room(wire: &mut Wire, engine: Engine, rows: usize) -> Result<()> {
    let over = over(engine);
    ask(wire, &format!("DELETE FROM {TABLE} WHERE {over} LIMIT {rows}"), 1).map(drop)
}

/// Sends statements, and reads their replies up to the first refusal.
fn ask(wire: &mut Wire, statements: &str, count: usize) -> Result<Vec<Answer>> {
    wire.query(statements).map_err(|failure| failure.error)?;
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

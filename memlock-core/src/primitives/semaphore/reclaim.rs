//! Reclaiming: a server was started anew and has forgotten the semaphore, and the holders of its
//! permits put them back.
//!
//! While a server recovers no client grants permits, by the life of the server in which it read the
//! record. Whoever misses the record sets it up again. Each holder whose lease still runs adds its
//! line, unless this life of the server has confirmed it: then it was lost by other means. The
//! record is replaced by compare-and-set only, and nobody is granted anything meanwhile: so a line
//! that was added counts, however late the reply comes.

use super::member::{Member, Writer};
use super::operation::{Kind, Reclaimable};
use super::record::Holding;
use super::snapshot::Snapshot;

/// Adds the lines of permits that are to be extended, and that the server has forgotten.
pub(super) fn put_back(snapshot: &mut Snapshot, batch: &[Member<'_>], writer: &Writer<'_>) {
    if !snapshot.recovers(writer.now) {
        return;
    }
    let Snapshot { record, now, version, .. } = snapshot;
    for member in batch {
        let Kind::Extend(extend) = &member.operation.kind else { continue };
        for it in extend.renewing.iter().filter(|it| extend.includes(it, writer.now)) {
            let fits = |held: &&Reclaimable| held.fits(version.epoch(), writer.now);
            let Some(held) = it.reclaimable.as_ref().filter(fits) else { continue };
            let is_there = record.held_by(it.token).is_some();
            if !is_there && record.available(*now) >= held.permits {
                let Writer { host, pid, unix_seconds, .. } = *writer;
                // The extension that follows sets the end.
                let until = now.saturating_add(1);
                let line = Holding::new(it.token, held.permits, until, host, pid, unix_seconds);
                record.holdings.push(line);
            }
        }
    }
}

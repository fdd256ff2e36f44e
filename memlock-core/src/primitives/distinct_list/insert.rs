//! The calls that insert one key or many.

use super::batch::Batch;
use super::insertion::Insertion;
use super::list::DistinctList;
use crate::error::Result;
use crate::guard::orphan;
use crate::name::check_member;

/// The maximum number of keys in a batch.
const BATCH: usize = 1000;

impl DistinctList {
    /// Inserts a key; `None` if there is no such session, and the key was refused. Three round
    /// trips for a new key, one for a duplicate, and one more if this handle has not read its
    /// session yet.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an empty key or one above 64 KiB.
    /// [`Unreachable`](crate::ErrorKind::Unreachable): nothing was changed.
    /// [`Unknown`](crate::ErrorKind::Unknown): the key may be in the list or not; inserting it again is
    /// safe, and completes the insert, but may report the caller's own key as a duplicate.
    /// [`Protocol`](crate::ErrorKind::Protocol), also if the server has no room for the key: it is not
    /// in the list then, though an insert in the meantime may have reported it as a duplicate.
    pub fn insert(&mut self, key: impl AsRef<[u8]>) -> Result<Option<Insertion>> {
        Ok(self.insert_many(&[key.as_ref()])?.and_then(|answers| answers.into_iter().next()))
    }

    /// Inserts many keys, and returns a result for each, in their order; `None` if there is no such
    /// session. Three round trips for each 1,000 keys, and one more if some of them are duplicates.
    /// If a key is given twice, the second is a duplicate of the first.
    ///
    /// # Errors
    /// As [`DistinctList::insert`]; after an error, some of the keys may be in the list.
    pub fn insert_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Option<Vec<Insertion>>> {
        for key in keys {
            check_member(key.as_ref()).map_err(|error| self.said("Inserting into", error))?;
        }
        let mut answers = Vec::with_capacity(keys.len());
        for batch in keys.chunks(BATCH) {
            let batch: Vec<&[u8]> = batch.iter().map(AsRef::as_ref).collect();
            match self.insert_batch(&batch)? {
                Some(more) => answers.extend(more),
                None => return Ok(None),
            }
        }
        Ok(Some(answers))
    }

    fn insert_batch(&mut self, keys: &[&[u8]]) -> Result<Option<Vec<Insertion>>> {
        orphan::reap(&self.target);
        // As for reads: a second time, if another session has replaced the one that was known.
        for _ in 0..2 {
            let Some(generation) = self.generation()? else { return Ok(None) };
            let token = self.target.context.identity()?.token();
            let mut batch = Batch::new(self, generation, token, keys);
            match batch.run().map_err(|error| self.said("Inserting into", error))? {
                Some(answers) => return Ok(Some(answers)),
                None if self.bound => return Ok(None),
                None => self.joined = None,
            }
        }
        Ok(None)
    }
}

//! Distinct lists.

use std::ptr;
use std::time::Duration;

use memlock::*;
use memlock_core::Answer;

use super::super::{No, Outcome};
use super::{C, done, millis, text};

struct List(*mut memlock_list);

// SAFETY: the header allows a list in one thread at a time, whichever it is.
unsafe impl Send for List {}

type Opened = Box<dyn super::super::List>;

pub(super) fn set_up(client: &C, session: &[u8], duration: Duration) -> Outcome<(Answer, Opened)> {
    let mut list = ptr::null_mut();
    // SAFETY: the client is open, and the string and the place are valid.
    let answer = super::set_up(unsafe {
        memlock_list_set_up(client.get(), text(session).as_ptr(), millis(duration), &mut list)
    })?;
    Ok((answer, Box::new(List(list))))
}

pub(super) fn open(client: &C, session: &[u8]) -> Outcome<Opened> {
    let mut list = ptr::null_mut();
    // SAFETY: the client is open, and the string and the place are valid.
    done(unsafe { memlock_list_open(client.get(), text(session).as_ptr(), &mut list) })?;
    Ok(Box::new(List(list)))
}

impl super::super::List for List {
    fn insert(&mut self, key: &[u8]) -> Outcome<(u64, bool)> {
        let mut id = 0;
        // SAFETY: the list is open, and the bytes and the place are valid.
        match done(unsafe { memlock_list_insert(self.0, key.as_ptr().cast(), key.len(), &mut id) })
        {
            Ok(()) => Ok((id, true)),
            Err(No { answer: Answer::Duplicate, .. }) => Ok((id, false)),
            Err(no) => Err(no),
        }
    }

    fn insert_many(&mut self, keys: &[&[u8]]) -> Outcome<Vec<(u64, bool)>> {
        let given: Vec<memlock_bytes> = keys
            .iter()
            .map(|key| memlock_bytes { data: key.as_ptr().cast(), len: key.len() })
            .collect();
        let mut answers = vec![memlock_insertion { id: 0, answer: -99 }; keys.len()];
        // SAFETY: the list is open, and there are as many places as keys.
        done(unsafe {
            memlock_list_insert_many(self.0, given.as_ptr(), given.len(), answers.as_mut_ptr())
        })?;
        let told = |insertion: &memlock_insertion| match insertion.answer {
            MEMLOCK_OK => (insertion.id, true),
            MEMLOCK_DUPLICATE => (insertion.id, false),
            other => panic!("an insertion answered {other}"),
        };
        Ok(answers.iter().map(told).collect())
    }

    fn id(&mut self, key: &[u8]) -> Outcome<Option<u64>> {
        let mut id = u64::MAX;
        // SAFETY: the list is open, and the bytes and the place are valid.
        done(unsafe { memlock_list_id(self.0, key.as_ptr().cast(), key.len(), &mut id) })?;
        Ok((id != 0).then_some(id))
    }

    fn count(&mut self) -> Outcome<u64> {
        let mut count = 0;
        // SAFETY: the list is open and the place is valid.
        done(unsafe { memlock_list_count(self.0, &mut count) })?;
        Ok(count)
    }

    fn walk(&mut self) -> Outcome<Vec<(u64, Vec<u8>)>> {
        let mut walk = ptr::null_mut();
        // SAFETY: the list is open and the place is valid.
        done(unsafe { memlock_list_walk(self.0, &mut walk) })?;
        let mut entries = Vec::new();
        let end = loop {
            let (mut id, mut key, mut len) = (0, ptr::null(), 0);
            // SAFETY: the walk is open and the places are valid.
            let next = done(unsafe { memlock_walk_next(walk, &mut id, &mut key, &mut len) });
            if next.is_err() || key.is_null() {
                break next;
            }
            // SAFETY: valid until the next step.
            entries.push((id, unsafe { std::slice::from_raw_parts(key.cast(), len) }.to_vec()));
        };
        // SAFETY: the walk is used no more.
        unsafe { memlock_walk_close(walk) };
        end.map(|()| entries)
    }

    fn tear_down(&mut self) -> Outcome<()> {
        // SAFETY: the list is open.
        done(unsafe { memlock_list_tear_down(self.0) })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the list is used no more.
        unsafe { memlock_list_close(self.0) };
    }
}

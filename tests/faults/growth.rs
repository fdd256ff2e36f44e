//! What long-living clients take of their machine, and how much more of it later on.

use std::collections::HashMap;
use std::io;

/// How much more memory a client may have at the end than after its first part: more than an
/// allocator's whims, less than a leak of a few bytes in each call.
const MOST_BYTES: u64 = 2 << 20;
/// How many more descriptors: listeners are opened when threads wait, and kept, as are up to 16
/// connections.
const MOST_DESCRIPTORS: usize = 8;

/// What one process takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) bytes: u64,
    pub(crate) descriptors: usize,
}

/// Looks at processes, which are given with their numbers.
pub(crate) fn look(pids: &HashMap<usize, u32>) -> io::Result<HashMap<usize, Taken>> {
    pids.iter().map(|(number, pid)| Ok((*number, taken(*pid)?))).collect()
}

fn taken(pid: u32) -> io::Result<Taken> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes: Option<u64> =
        resident.and_then(|text| text.trim().split(' ').next()?.parse().ok());
    let bytes =
        kilobytes.ok_or_else(|| io::Error::other(format!("process {pid} has no VmRSS")))? << 10;
    Ok(Taken { bytes, descriptors: std::fs::read_dir(format!("/proc/{pid}/fd"))?.count() })
}

/// The greatest growth of those that were there both times, and what is too much of it.
pub(crate) fn compare(
    before: &HashMap<usize, Taken>,
    after: &HashMap<usize, Taken>,
) -> (Taken, Vec<String>) {
    let mut most = Taken::default();
    let mut too_much = Vec::new();
    for (number, then) in before {
        let Some(now) = after.get(number) else { continue };
        let bytes = now.bytes.saturating_sub(then.bytes);
        let descriptors = now.descriptors.saturating_sub(then.descriptors);
        most =
            Taken { bytes: most.bytes.max(bytes), descriptors: most.descriptors.max(descriptors) };
        if bytes > MOST_BYTES || descriptors > MOST_DESCRIPTORS {
            too_much.push(format!("process {number} grew from {then:?} to {now:?}"));
        }
    }
    (most, too_much)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_beyond_the_bounds_is_told() {
        let small = Taken { bytes: 1 << 20, descriptors: 5 };
        let large = Taken { bytes: 4 << 20, descriptors: 14 };
        let before = HashMap::from([(0, small), (1, small)]);
        let (most, too_much) = compare(&before, &HashMap::from([(0, small), (1, large)]));
        assert_eq!(most, Taken { bytes: 3 << 20, descriptors: 9 });
        assert_eq!(too_much.len(), 1);
        assert!(compare(&before, &before).1.is_empty());
    }
}

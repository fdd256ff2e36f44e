//! One value of each type, created at its first use: what a primitive needs once per client,
//! without the client knowing the primitive.

use std::any::Any;

use once_cell::race::OnceBox;

/// A list that only grows. No thread waits for another, so a fork never catches a waiting thread.
#[derive(Default)]
pub(crate) struct Extensions {
    first: OnceBox<Node>,
}

struct Node {
    value: Box<dyn Any + Send + Sync>,
    next: OnceBox<Node>,
}

impl Extensions {
    /// The value of this type. Several threads may create one at the same time; all of them use the
    /// one that was added to the list first.
    pub(crate) fn get_or_init<T: Any + Send + Sync>(&self, make: impl Fn() -> T) -> &T {
        let mut place = &self.first;
        loop {
            let add = || Box::new(Node { value: Box::new(make()), next: OnceBox::new() });
            let node = place.get_or_init(add);
            if let Some(value) = node.value.downcast_ref() {
                return value;
            }
            place = &node.next;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn there_is_one_value_of_each_type() {
        let extensions = Extensions::default();
        assert_eq!(*extensions.get_or_init(|| 1_u8), 1);
        assert_eq!(*extensions.get_or_init(|| 2_u16), 2);
        assert_eq!(*extensions.get_or_init(|| 3_u8), 1);
        assert_eq!(*extensions.get_or_init(|| 4_u16), 2);
    }

    #[test]
    fn threads_that_begin_together_get_the_same_value() {
        let extensions = Extensions::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    extensions.get_or_init(String::new);
                    extensions.get_or_init(|| AtomicU32::new(0)).fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        assert_eq!(extensions.get_or_init(|| AtomicU32::new(0)).load(Ordering::SeqCst), 4);
    }
}

//! What a reader and a writer do if bytes are damaged, a disk or a process fails, or others use the
//! file.

mod bits;
mod concurrent;
mod corrupt;
mod crash;
mod crash_states;
mod deep;
mod faults;
mod hostile;
mod limits;
mod mapping;
mod repair;

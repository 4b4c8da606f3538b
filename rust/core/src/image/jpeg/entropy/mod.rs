//! Huffman decoding of sequential JPEGs, for the parts of an image that a crop needs.
//!
//! `libjpeg-turbo` reads the headers and makes pixels of the coefficients (`super::rows`). The part
//! between them takes two thirds of its time, and is here. It accepts only coded data without any
//! irregularity, which it decodes to the same coefficients. At the first irregularity it gives up,
//! and the image is decoded again by `libjpeg-turbo` alone: damaged images get the same pixels, or
//! the same error, whatever their damage is.
#![allow(clippy::inline_always)] // the hot loop keeps its state in registers: a third faster
#![allow(clippy::cast_possible_wrap, clippy::cast_sign_loss)] // bits of values, taken as they are

mod bits;
mod block;
mod coded;
mod index;
mod tables;
mod window;

pub(super) use bits::Bits;
pub(super) use block::{coefficients, difference};
pub(super) use coded::{Coded, RESTART};
pub(super) use index::Index;
pub(super) use tables::{AcTable, CodeTable, DcTable, Huffman, HuffmanTables, Recent, value};
pub(super) use window::{Entropy, Layout, Mcus, Source, Window};

/// The most blocks of an MCU (ITU-T T.81, B.2.3).
pub(super) const MOST_BLOCKS: usize = 10;
/// The most components of a scan.
const MOST_COMPONENTS: usize = 4;

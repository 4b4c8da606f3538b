//! Batches of images made by threads: the result does not depend on their number, keeps the order,
//! and may end at any moment.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::common::{folder, options};
use fastrecord_core::image::{DecodeOptions, JpegOptions, Random, encode_jpeg};
use fastrecord_core::{
    Access, BatchBuffer, BufferPool, Error, FieldType, ImageOutput, Load, LoadCounters, LoadPlan, LoadSource, Loader,
    Mode, Output, Reader, Schema, Value, Verify, Workload, Writer,
};

const SIDE: u32 = 16;
const IMAGE: usize = 3 * (SIDE * SIDE) as usize;

fn jpeg(number: u64) -> Vec<u8> {
    let (width, height) = (40 + (number % 7) as u32, 60 - (number % 5) as u32);
    let mut random = Random::new(number, 0, 0);
    let pixels: Vec<u8> = (0..3 * width * height).map(|i| (i % 190) as u8 + (random.bits() & 31) as u8).collect();
    encode_jpeg(&pixels, width, height, &JpegOptions::default()).unwrap()
}

/// A file of images in a field of bytes; if `bad`, record 3 of each ten is not an image.
fn write(path: &Path, count: u64, bad: bool) -> PathBuf {
    let schema = Schema::new([("image", FieldType::Bytes)]).unwrap();
    let mut writer = Writer::open(path, Some(schema), None, &options(Mode::Create)).unwrap();
    for number in 0..count {
        let data = if bad && number % 10 == 3 { b"no image".to_vec() } else { jpeg(number) };
        writer.append(&[Value::Bytes(&data)]).unwrap();
    }
    writer.close().unwrap();
    path.to_owned()
}

/// Random crops of that size, mirrored at random.
pub fn random_crops((width, height): (u32, u32)) -> Output {
    let described = format!(
        r#"{{"stream": "image", "count": 1, "like": null, "size": [{width}, {height}], "filter": "bilinear",
            "nearest": false, "may_be_mask": true, "fill": [0, 0, 0], "form": "rgb",
            "geometry": {{"kind": "random_resized_crop", "size": [{width}, {height}], "scale": [0.08, 1.0], "ratio": [0.75, 1.34]}},
            "recipe": {{"operations": [{{"op": "RandomHorizontalFlip", "p": 0.5}}], "to_float": null, "after": []}}}}"#
    );
    Output::Image(Box::new(ImageOutput::new(&described).unwrap()))
}

fn plan(paths: &[PathBuf]) -> Arc<LoadPlan> {
    let source =
        |path: &PathBuf| LoadSource::new(Reader::open(path, Access::Mmap, None).unwrap(), &["image"]).unwrap().into();
    let output = random_crops((SIDE, SIDE));
    let sources = paths.iter().map(source).collect();
    Arc::new(LoadPlan::new(sources, &[output], DecodeOptions::default(), Verify::Always).unwrap())
}

fn start(plan: &Arc<LoadPlan>, threads: usize) -> Loader {
    plan.start(Arc::default(), threads).unwrap()
}

fn work(spares: &Arc<BufferPool>, rows: std::ops::Range<u64>) -> Workload {
    let rows: Vec<u64> = rows.collect();
    let buffers = vec![spares.take(rows.len() * IMAGE).unwrap()];
    Workload { seed: 1, epoch: 2, positions: rows.clone(), rows, ahead: Vec::new(), buffers }
}

/// The bytes of a batch, read through the process's own memory file: this test crate has no
/// `unsafe`.
fn bytes(buffer: &BatchBuffer) -> Vec<u8> {
    use std::os::unix::fs::FileExt;
    let memory = std::fs::File::open("/proc/self/mem").unwrap();
    let mut bytes = vec![0; buffer.len()];
    memory.read_exact_at(&mut bytes, buffer.as_ptr() as u64).unwrap();
    bytes
}

/// The images and the failed places.
fn finish(load: &Load) -> (Vec<u8>, Vec<usize>) {
    let (buffers, failures) = load.wait(&|| false).unwrap();
    (bytes(&buffers[0]), failures.iter().map(|failure| failure.slot).collect())
}

#[test]
fn batches_are_the_same_for_any_number_of_threads_and_failures_come_in_order() {
    let folder = folder();
    let paths = [write(&folder.path().join("a.frec"), 25, true), write(&folder.path().join("b.frec"), 35, true)];
    let plan = plan(&paths);
    let spares = BufferPool::new(4);
    let mut expected = None;
    for threads in 1..=8 {
        let loader = start(&plan, threads);
        assert_eq!(loader.threads(), threads);
        // Two rounds, so that memory is reused.
        for _ in 0..2 {
            let ranges = [0..20, 20..27, 27..60];
            let loads: Vec<Load> = ranges.into_iter().map(|rows| loader.submit(work(&spares, rows)).unwrap()).collect();
            let made: Vec<_> = loads.iter().map(finish).collect();
            assert_eq!(made[0].1, [3, 13]);
            assert_eq!(made[1].1, [3]);
            assert_eq!(made[2].1, [1, 11, 21, 31]);
            for (images, failed) in &made {
                for (place, image) in images.chunks(IMAGE).enumerate() {
                    assert_eq!(image.iter().all(|&byte| byte == 0), failed.contains(&place), "place {place}");
                }
            }
            assert_eq!(expected.get_or_insert_with(|| made.clone()), &made, "{threads} threads");
        }
    }
}

#[test]
fn a_failure_names_its_file_and_its_record_there() {
    let folder = folder();
    let paths = [write(&folder.path().join("a.frec"), 25, true), write(&folder.path().join("b.frec"), 35, true)];
    let plan = plan(&paths);
    let loader = start(&plan, 2);
    let (_, failures) = loader.submit(work(&BufferPool::new(1), 25..30)).unwrap().wait(&|| false).unwrap();
    let told = failures[0].error.to_string();
    assert!(told.contains("b.frec: record 3, field image: not an image of a known type"), "{told}");
    assert_eq!(failures.len(), 1);
}

#[test]
fn batches_may_be_waited_for_in_any_order_and_by_several_threads() {
    let folder = folder();
    let plan = plan(&[write(&folder.path().join("a.frec"), 60, false)]);
    let (loader, spares) = (start(&plan, 2), BufferPool::new(0));
    let expected: Vec<_> =
        (0..6).map(|i| finish(&loader.submit(work(&spares, 10 * i..10 * i + 10)).unwrap())).collect();
    let loads: Vec<Load> = (0..6).map(|i| loader.submit(work(&spares, 10 * i..10 * i + 10)).unwrap()).collect();
    std::thread::scope(|scope| {
        let waiters: Vec<_> = loads.iter().rev().map(|load| scope.spawn(|| finish(load))).collect();
        let made: Vec<_> = waiters.into_iter().rev().map(|waiter| waiter.join().unwrap()).collect();
        assert_eq!(made, expected);
    });
    assert!(loads.iter().all(Load::is_ready));

    // One batch and two waiting threads: both wake, and one of them receives it.
    let load = loader.submit(work(&spares, 0..60)).unwrap();
    let wait = || load.wait(&|| false).unwrap().0.len();
    let got = std::thread::scope(|scope| [scope.spawn(wait), scope.spawn(wait)].map(|waiter| waiter.join().unwrap()));
    assert_eq!(got[0] + got[1], 1);
}

#[test]
fn many_small_batches_are_all_made_and_none_is_forgotten() {
    let folder = folder();
    let plan = plan(&[write(&folder.path().join("a.frec"), 8, false)]);
    let (loader, spares) = (start(&plan, 3), BufferPool::new(8));
    let mut under_way = std::collections::VecDeque::new();
    for number in 0..3000_u64 {
        under_way.push_back(loader.submit(work(&spares, number % 8..number % 8 + 1)).unwrap());
        // Zero to five batches ahead, so that threads often sleep and wake.
        while under_way.len() > (number % 6) as usize {
            let (buffers, failures) = under_way.pop_front().unwrap().wait(&|| false).unwrap();
            assert_eq!((buffers.len(), failures.len()), (1, 0));
        }
    }
}

#[test]
fn dropping_a_loader_with_work_queued_ends_its_threads_and_whoever_waits() {
    let folder = folder();
    let plan = plan(&[write(&folder.path().join("a.frec"), 40, false)]);
    for round in 0..30 {
        let counters = Arc::new(LoadCounters::default());
        let loader = plan.start(Arc::clone(&counters), 1 + round % 3).unwrap();
        let spares = BufferPool::new(0);
        let loads: Vec<Load> = (0..100).map(|_| loader.submit(work(&spares, 0..40)).unwrap()).collect();
        let last = loads.last().unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| last.wait(&|| false).map(|_| ()));
            if round % 2 == 0 {
                loads[0].wait(&|| false).unwrap();
            }
            drop(loader);
            assert!(matches!(waiter.join().unwrap(), Err(Error::LoaderClosed)));
        });
        let made = counters.records.load(Ordering::Relaxed);
        assert!(made < 100 * 40);
        // The threads have ended: only this test holds the plan's counters, and no work is left.
        assert_eq!(Arc::strong_count(&counters), 1);
        assert!(matches!(last.wait(&|| false), Err(Error::LoaderClosed)));
        // Batches that were complete before stay unchanged.
        if round % 2 == 0 {
            assert!(loads[0].is_ready());
        }
    }
}

#[test]
fn an_interrupted_wait_may_be_repeated() {
    let folder = folder();
    let plan = plan(&[write(&folder.path().join("a.frec"), 40, false)]);
    let loader = start(&plan, 1);
    // Seconds of work: a wait looks for an interrupt every 100 ms.
    let spares = BufferPool::new(0);
    let loads: Vec<Load> = (0..2000).map(|_| loader.submit(work(&spares, 0..40)).unwrap()).collect();
    let last = loads.last().unwrap();
    let asked = Cell::new(0);
    let outcome = last.wait(&|| {
        asked.set(asked.get() + 1);
        true
    });
    assert!(matches!(outcome, Err(Error::Interrupted)));
    assert_eq!(asked.get(), 1);
    assert!(!last.is_ready());
    assert_eq!(last.wait(&|| false).unwrap().0.len(), 1);
    assert!(last.is_ready());
}

#[test]
fn work_that_does_not_fit_is_refused_and_harms_nothing() {
    let folder = folder();
    let plan = plan(&[write(&folder.path().join("a.frec"), 10, false)]);
    let (loader, spares) = (start(&plan, 2), BufferPool::new(2));
    let refused = |load: Workload| loader.submit(load).unwrap_err().to_string();
    let told = refused(work(&spares, 8..11));
    assert_eq!(told, "row 10 is out of range: the files have 10 records");
    assert_eq!(refused(Workload { ahead: vec![3, 99], ..work(&spares, 0..2) }), told.replace("10 is", "99 is"));
    assert_eq!(refused(Workload { positions: vec![1], ..work(&spares, 0..2) }), "a batch has 2 rows and 1 positions");
    assert_eq!(refused(work(&spares, 0..0)), "a batch has 0 rows and 0 positions");
    let wanted = format!("2 rows need buffers of [{}] bytes", 2 * IMAGE);
    for buffers in [vec![], vec![spares.take(2 * IMAGE - 1).unwrap()]] {
        assert_eq!(refused(Workload { buffers, ..work(&spares, 0..2) }), wanted);
    }
    assert_eq!(loader.submit(work(&spares, 8..10)).unwrap().wait(&|| false).unwrap().0.len(), 1);
}

#[test]
fn memory_lives_as_long_as_whoever_has_it_and_then_serves_the_next_batch() {
    let folder = folder();
    let plan = plan(&[write(&folder.path().join("a.frec"), 20, false)]);
    let (loader, spares) = (start(&plan, 2), BufferPool::new(1));
    let (first, _) = loader.submit(work(&spares, 0..10)).unwrap().wait(&|| false).unwrap();
    let kept = bytes(&first[0]);
    let (second, _) = loader.submit(work(&spares, 10..20)).unwrap().wait(&|| false).unwrap();
    assert_ne!(first[0].as_ptr(), second[0].as_ptr());
    drop(loader);
    assert_eq!(bytes(&first[0]), kept);
    let address = second[0].as_ptr();
    drop(second);
    assert_eq!(spares.take(10 * IMAGE).unwrap().as_ptr(), address);
}

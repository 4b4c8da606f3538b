//! The deep check finds values that were already wrong when they were written, under right
//! checksums.

use std::fs;

use crate::common::{EXTENTS, Forge, VALUES, folder};
use fastrecord_core::image::{JpegOptions, encode_jpeg};
use fastrecord_core::{Access, Depth, Reader, verify};

#[test]
fn each_value_that_is_not_what_its_field_holds_is_named_by_record_field_and_key() {
    let fields = r#"[{"id": 1, "name": "image", "type": "image"}, {"id": 2, "name": "key", "type": "string"},
        {"id": 3, "name": "doc", "type": "json"}, {"id": 4, "name": "texts", "type": "list", "item": {"type": "string"}},
        {"id": 5, "name": "flag", "type": "bool"}, {"id": 6, "name": "flags", "type": "list", "item": {"type": "bool"}},
        {"id": 7, "name": "data", "type": "bytes"}]"#;
    let jpeg = encode_jpeg(&[200; 3 * 20 * 10], 20, 10, &JpegOptions::default()).unwrap();
    let mut forge = Forge::new(fields, 4);
    let list = |bytes: &[u8]| [&1_u64.to_le_bytes()[..], &(16 + bytes.len() as u64).to_le_bytes(), bytes].concat();
    let flags = |byte: u8| [&1_u64.to_le_bytes()[..], &[byte]].concat();
    // One record with right values, two with errors, and one without any optional value.
    let half = &jpeg[..jpeg.len() - 30];
    let columns: [(u32, [Vec<u8>; 3]); 6] = [
        (1, [jpeg.clone(), half.to_vec(), jpeg.clone()]),
        (2, [b"first".to_vec(), b"cat/2.jpg".to_vec(), b"\xff\xfe".to_vec()]),
        (3, [b"{\"a\": [1e999, null]}".to_vec(), b"{\"a\": NaN}".to_vec(), b"[1, 2".to_vec()]),
        (4, [list(b"good"), list(b"\xff"), list(b"good")[..18].to_vec()]),
        (6, [flags(1), flags(2), flags(0)]),
        (7, [vec![1, 2], vec![], vec![0xff]]),
    ];
    let mut missing = [0; 32];
    missing[29] = 1;
    for (field, values) in columns {
        let place = |value: &Vec<u8>| {
            let at = forge.bytes.len().next_multiple_of(64);
            forge.bytes.resize(at, 0); // lists are aligned
            forge.payload(value)
        };
        let extents: Vec<u8> = values.iter().map(place).collect::<Vec<_>>().concat();
        forge.chunk(field, 0, EXTENTS, 32, 0, &[&extents[..], &missing].concat());
        if field == 1 {
            let sides = |sides: [u32; 4]| sides.iter().flat_map(|side| side.to_le_bytes()).collect::<Vec<u8>>();
            forge.chunk(1, 1, VALUES, 4, 0, &sides([20, 20, 21, 0]));
            forge.chunk(1, 2, VALUES, 4, 0, &sides([10, 10, 10, 0]));
        }
    }
    forge.chunk(5, 0, VALUES, 1, 0, &[1, 0, 7, 0]);
    forge.directory.sort_by_key(|entry| (entry[0], entry[4]));
    let folder = folder();
    let path = folder.path().join("x.frec");
    fs::write(&path, forge.build(|_| ())).unwrap();
    for access in [Access::Mmap, Access::Pread] {
        let reader = Reader::open(&path, access, None).unwrap();
        assert_eq!(verify(&reader, Depth::Checksums, &|| false).unwrap().errors, [""; 0]);
        let report = verify(&reader, Depth::Values, &|| false).unwrap();
        let mut found: Vec<(u64, &str, Option<&str>, &str)> = report
            .damaged
            .iter()
            .map(|value| {
                let code = value.error.rsplit('[').next().unwrap().trim_end_matches(']');
                (value.record, &value.field[..], value.key.as_deref(), code)
            })
            .collect();
        found.sort_unstable();
        let second = Some("cat/2.jpg");
        let expected = [
            (1, "doc", second, "FR308"),
            (1, "flags", second, "FR309"),
            (1, "image", second, "FR502"),
            (1, "texts", second, "FR307"),
            (2, "doc", None, "FR308"),
            (2, "flag", None, "FR309"),
            (2, "image", None, "FR309"),
            (2, "key", None, "FR306"),
            (2, "texts", None, "FR307"),
        ];
        assert_eq!(found, expected, "{:#?}", report.errors);
        assert_eq!((report.decoded, report.undecoded, report.errors.len()), (1, 0, expected.len()));
        assert!(report.errors.iter().any(|error| error.contains("its width is 20 pixels, but 21 in the column")));
    }
}

/* Rows of pixels from a JPEG's header and its coefficients, by libjpeg-turbo.
 *
 * libjpeg's Huffman decoder is a function behind a pointer, one of the few that its modules call
 * each other by (jpegint.h). Here the pointer leads to the caller's own decoder. All else is
 * libjpeg-turbo's: reading headers, the inverse DCT, upsampling and colours. */

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#if LIBJPEG_TURBO_VERSION_NUMBER / 1000 != 3001
#error "Compare the struct below with this libjpeg-turbo's jpegint.h, then allow its version here."
#endif

/* The beginning of the entropy decoder, as libjpeg-turbo's jpegint.h declares it. */
struct jpeg_entropy_decoder {
  void (*start_pass)(j_decompress_ptr);
  boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
};

/* Decodes an MCU into blocks of zeros; returns 0 to stop. */
typedef int (*next_mcu)(void *, JCOEF *, int);

/* How the MCUs of the scan are coded. */
struct fastrecord_layout {
  int components; /* in the scan */
  int blocks;     /* of an MCU */
  int component[D_MAX_BLOCKS_IN_MCU];
  int columns, rows;    /* of MCUs */
  int restart_interval; /* in MCUs, or 0 */
  int width, height; /* of the output, in pixels */
  UINT8 counts[2][NUM_HUFF_TBLS][17]; /* of tables for first coefficients, and for others */
  UINT8 symbols[2][NUM_HUFF_TBLS][256];
  int table[2][D_MAX_BLOCKS_IN_MCU];
};

struct fastrecord_rows {
  struct jpeg_decompress_struct jpeg;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  jmp_buf on_error;
  next_mcu next;
  void *user;
};

static void fail(j_common_ptr jpeg) { longjmp(((struct fastrecord_rows *)jpeg->client_data)->on_error, 1); }

/* Warnings and traces: a header with a warning is not for us. */
static void emit(j_common_ptr jpeg, int level)
{
  if (level < 0)
    fail(jpeg);
}

static void ignore(j_decompress_ptr jpeg) { (void)jpeg; }

/* The header ended too early. */
static boolean no_more(j_decompress_ptr jpeg)
{
  (void)jpeg;
  return FALSE;
}

static void skip_input(j_decompress_ptr jpeg, long count)
{
  struct jpeg_source_mgr *source = jpeg->src;
  if (count < 0 || (size_t)count > source->bytes_in_buffer)
    fail((j_common_ptr)jpeg);
  source->next_input_byte += count;
  source->bytes_in_buffer -= count;
}

static boolean decode_mcu(j_decompress_ptr jpeg, JBLOCKROW *blocks)
{
  struct fastrecord_rows *rows = jpeg->client_data;
  /* decompress_onepass() has one array for all blocks of an MCU, and has zeroed it. */
  return rows->next(rows->user, *blocks[0], jpeg->blocks_in_MCU) != 0;
}

void fastrecord_rows_free(struct fastrecord_rows *rows)
{
  if (!setjmp(rows->on_error))
    jpeg_destroy_decompress(&rows->jpeg);
  free(rows);
}

/* Returns memory for one image after the other, or NULL. */
struct fastrecord_rows *fastrecord_rows_new(void)
{
  struct fastrecord_rows *rows = calloc(1, sizeof(*rows));
  if (rows == NULL)
    return NULL;
  rows->jpeg.err = jpeg_std_error(&rows->errors);
  rows->errors.error_exit = fail;
  rows->errors.emit_message = emit;
  rows->jpeg.client_data = rows;
  if (setjmp(rows->on_error)) {
    fastrecord_rows_free(rows);
    return NULL;
  }
  jpeg_create_decompress(&rows->jpeg);
  rows->jpeg.client_data = rows;
  /* libjpeg would set a table that does not exist yet to the standard's, but only for the first
   * image that lacks it. */
  for (int i = 0; i < NUM_HUFF_TBLS; i++) {
    rows->jpeg.dc_huff_tbl_ptrs[i] = jpeg_alloc_huff_table((j_common_ptr)&rows->jpeg);
    rows->jpeg.ac_huff_tbl_ptrs[i] = jpeg_alloc_huff_table((j_common_ptr)&rows->jpeg);
  }
  rows->source.init_source = ignore;
  rows->source.fill_input_buffer = no_more;
  rows->source.skip_input_data = skip_input;
  rows->source.resync_to_restart = jpeg_resync_to_restart;
  rows->source.term_source = ignore;
  rows->jpeg.src = &rows->source;
  return rows;
}

/* The tables of the last image stay allocated. Without this, a JPEG that lacks a table would get
 * the last one's. */
static void spoil_tables(j_decompress_ptr jpeg)
{
  for (int i = 0; i < NUM_QUANT_TBLS; i++)
    if (jpeg->quant_tbl_ptrs[i] != NULL)
      memset(jpeg->quant_tbl_ptrs[i]->quantval, 0, sizeof(jpeg->quant_tbl_ptrs[i]->quantval));
  for (int i = 0; i < NUM_HUFF_TBLS; i++) {
    memset(jpeg->dc_huff_tbl_ptrs[i]->bits, 255, sizeof(jpeg->dc_huff_tbl_ptrs[i]->bits));
    memset(jpeg->ac_huff_tbl_ptrs[i]->bits, 255, sizeof(jpeg->ac_huff_tbl_ptrs[i]->bits));
  }
}

static int fill_layout(j_decompress_ptr jpeg, struct fastrecord_layout *layout)
{
  layout->components = jpeg->comps_in_scan;
  layout->blocks = jpeg->blocks_in_MCU;
  layout->columns = (int)jpeg->MCUs_per_row;
  layout->rows = (int)jpeg->MCU_rows_in_scan;
  layout->restart_interval = (int)jpeg->restart_interval;
  layout->width = (int)jpeg->output_width;
  layout->height = (int)jpeg->output_height;
  for (int block = 0; block < jpeg->blocks_in_MCU; block++) {
    int number = jpeg->MCU_membership[block];
    jpeg_component_info *component = jpeg->cur_comp_info[number];
    if (!component->component_needed || component->quant_table == NULL || component->quant_table->quantval[0] == 0)
      return 0;
    layout->component[block] = number;
    layout->table[0][block] = component->dc_tbl_no;
    layout->table[1][block] = component->ac_tbl_no;
    for (int kind = 0; kind < 2; kind++) {
      int at = layout->table[kind][block];
      JHUFF_TBL *table = (kind == 0 ? jpeg->dc_huff_tbl_ptrs : jpeg->ac_huff_tbl_ptrs)[at];
      memcpy(layout->counts[kind][at], table->bits, sizeof(table->bits));
      memcpy(layout->symbols[kind][at], table->huffval, sizeof(table->huffval));
    }
  }
  return 1;
}

/* Reads the header up to the scan, and prepares for its MCUs. Returns 0 if it is not one scan of
 * Huffman codes, or has a fault. */
int fastrecord_rows_start(struct fastrecord_rows *rows, const unsigned char *header, size_t length, int denominator,
                          int cmyk, struct fastrecord_layout *layout)
{
  j_decompress_ptr jpeg = &rows->jpeg;
  if (setjmp(rows->on_error))
    return 0;
  jpeg_abort_decompress(jpeg);
  spoil_tables(jpeg);
  rows->source.next_input_byte = header;
  rows->source.bytes_in_buffer = length;
  if (jpeg_read_header(jpeg, TRUE) != JPEG_HEADER_OK || rows->source.bytes_in_buffer != 0)
    return 0;
  if (jpeg->progressive_mode || jpeg->arith_code || jpeg->data_precision != 8 || jpeg_has_multiple_scans(jpeg) ||
      jpeg->comps_in_scan != jpeg->num_components)
    return 0;
  jpeg->out_color_space = cmyk ? JCS_CMYK : JCS_EXT_RGB;
  jpeg->scale_num = 1;
  jpeg->scale_denom = (unsigned)denominator;
  jpeg->do_fancy_upsampling = TRUE;
  jpeg->dct_method = JDCT_ISLOW;
  if (!jpeg_start_decompress(jpeg) || jpeg->output_components != (cmyk ? 4 : 3))
    return 0;
  jpeg->entropy->decode_mcu = decode_mcu;
  return fill_layout(jpeg, layout);
}

/* Writes the next rows, `pitch` bytes apart. Returns 0 if `next` stopped. */
int fastrecord_rows_read(struct fastrecord_rows *rows, unsigned char *out, size_t pitch, int count, next_mcu next,
                         void *user)
{
  j_decompress_ptr jpeg = &rows->jpeg;
  if (setjmp(rows->on_error))
    return 0;
  rows->next = next;
  rows->user = user;
  while (count > 0) {
    JSAMPROW row[8];
    int most = count < 8 ? count : 8;
    for (int i = 0; i < most; i++)
      row[i] = out + i * pitch;
    int read = (int)jpeg_read_scanlines(jpeg, row, (JDIMENSION)most);
    if (read == 0)
      return 0;
    out += read * pitch;
    count -= read;
  }
  return 1;
}
